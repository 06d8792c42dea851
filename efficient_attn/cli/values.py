"""Types of option values: each parses a text or raises an error of one line."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError, make_unknown_error
from ..resources import ModelShape, find_model_shape
from ..units import parse_size


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A comma-separated list; argparse names the option when a value does not fit."""

    def parse(text: str) -> list[Any]:
        return [kind(part.strip()) for part in text.split(",")]

    return parse


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seed(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def boolean(text: str) -> bool:
    """``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def one_of(label: str, choices: Sequence[str]) -> Callable[[str], str]:
    """A parser for one of these choices."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(str(make_unknown_error(label, text, choices)))
        return text

    return parse


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    value = _parse_float(text)
    if not value or not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def share(text: str) -> float:
    """0.02 for 2%, or 2% itself."""
    value = _parse_float(text.removesuffix("%"))
    value = value / 100 if value is not None and text.endswith("%") else value
    if value is None or not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0 and below 1, such as 0.05 or 5%")
    return value


def confidence(text: str) -> float:
    """A number between 0 and 1."""
    value = _parse_float(text)
    if value is None or not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1, such as 0.95")
    return value


def size(text: str) -> int:
    """Bytes, as `parse_size` reads them."""
    try:
        return parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def length(text: str) -> int:
    """``16384`` or ``16K``, which is the same."""
    number, thousands = (text[:-1], 2**10) if text[-1:] in ("k", "K") else (text, 1)
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1, such as 16384 or 16K")
    return int(number) * thousands


DTYPES = ("float32", "float64", "float16", "bfloat16")
DTYPE_ALIASES = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}


def dtype(text: str) -> str:
    """``bfloat16``, or ``bf16`` for short."""
    return one_of("dtype", DTYPES)(DTYPE_ALIASES.get(text, text))


def bound(text: str) -> float:
    """A finite number of at least 0."""
    value = _parse_float(text)
    if value is None or not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def task_share(text: str) -> tuple[str, float]:
    """``TASK=SHARE``."""
    task, mark, value = text.partition("=")
    if not mark or not task:
        raise argparse.ArgumentTypeError(f"{text!r} is not TASK=SHARE, such as mqar=.95")
    return task, bound(value)


def milliseconds(text: str) -> float:
    """``50ms``, ``800us`` or ``2s``."""
    for unit, factor in (("ms", 1.0), ("us", 1e-3), ("s", 1e3)):
        value = _parse_float(text.removesuffix(unit)) if text.endswith(unit) else None
        if value is not None and 0 < value < math.inf:
            return value * factor
    raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 50ms, 800us or 2s")


INCHES_PER_UNIT = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # TeX's points


def inches(text: str) -> float:
    """``3.3in``, ``8.4cm``, ``84mm`` or ``240pt``."""
    for unit, factor in INCHES_PER_UNIT.items():
        value = _parse_float(text.removesuffix(unit)) if text.endswith(unit) else None
        if value is not None and 0 < value < math.inf:
            return value * factor
    raise argparse.ArgumentTypeError(f"{text!r} is not a width such as 3.3in, 8.4cm, 84mm or 240pt")


def shape(text: str) -> ModelShape:
    """A model's shape by its name."""
    try:
        return find_model_shape(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def key_value(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` with a TOML value, several values separated by commas, or any other text."""
    name, mark, value = text.partition("=")
    if not mark or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    parts = [_parse_toml(part.strip()) for part in value.split(",")] if value[0] not in "['\"" else [_parse_toml(value)]
    return name.strip(), parts if len(parts) > 1 else parts[0]


def export(text: str) -> tuple[str, Path]:
    """``FORMAT=FILE``."""
    name, mark, file = text.partition("=")
    choices = ("github-action", "pytest-benchmark")
    if name not in choices:
        raise argparse.ArgumentTypeError(str(make_unknown_error("format", name, choices)))
    if not mark or not file:
        raise argparse.ArgumentTypeError(f"{text!r} names no file; write {name}=FILE")
    return name, Path(file)


def picture(text: str) -> Path:
    """A file whose suffix is a picture format."""
    if Path(text).suffix.lower() not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png, .svg or .pdf")
    return Path(text)


class OnceAction(argparse.Action):
    """An option with one value and no default, which may be given only once."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Store a value; an error if the option was given before."""
        if getattr(namespace, self.dest, None) is not None:
            raise argparse.ArgumentError(self, "given twice; give it only once")
        setattr(namespace, self.dest, values)


def _parse_toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
