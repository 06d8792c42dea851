"""Bundled files: suites, captured activations and model shapes."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .errors import UsageError, make_unknown_error

MAX_TOML_BYTES = 2**24


@dataclass(frozen=True)
class ModelShape:
    """The attention shape of a known model. kv_heads: None if heads share none. window: visible keys, if limited;
    length: positions in training. source: where it is documented."""

    name: str
    heads: int
    kv_heads: int | None
    head_dim: int
    length: int
    window: int | None
    source: str

    @property
    def axes(self) -> dict[str, int]:
        """The axes of a suite that this shape sets."""
        values = {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}
        return {name: value for name, value in values.items() if value is not None}


def find_suites_folder() -> Path:
    """The folder of built-in suites: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).parent
    installed = package / "suites"
    return installed if installed.is_dir() else package.parent / "suites"


def list_suite_names() -> list[str]:
    """The names of the built-in suites."""
    return sorted(p.stem for p in find_suites_folder().glob("*.toml"))


def describe_suite(name: str) -> str:
    """A built-in suite's description, or its title."""
    with (find_suites_folder() / f"{name}.toml").open("rb") as file:
        suite = tomllib.load(file)
    return str(suite.get("description") or suite.get("title") or "")


def read_toml(path: Path) -> str:
    """The text of a user's TOML file. Raises `UsageError` for anything but a file of at most 16 MiB in UTF-8."""
    try:
        if not path.is_file():
            raise UsageError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        if (size := path.stat().st_size) > MAX_TOML_BYTES:
            raise UsageError(f"{path}: {size} bytes, more than {MAX_TOML_BYTES}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The contents of a user's TOML. Raises `UsageError` in one line, also for integers of thousands of digits and
    deeply nested lists. where: the beginning of the message."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not valid TOML: {error}") from error


@cache
def list_model_shapes() -> tuple[ModelShape, ...]:
    """All model shapes, from ``suites/data/shapes.toml``."""
    with (find_suites_folder() / "data" / "shapes.toml").open("rb") as file:
        shapes = tomllib.load(file)
    fields = ("heads", "kv_heads", "head_dim", "length", "window", "source")
    return tuple(ModelShape(name, *(values.get(field) for field in fields)) for name, values in shapes.items())


def find_model_shape(name: str) -> ModelShape:
    """A model's shape by name. Raises `UsageError` for an unknown name."""
    shapes = {shape.name: shape for shape in list_model_shapes()}
    if name not in shapes:
        raise make_unknown_error("shape", name, shapes)
    return shapes[name]
