"""Types of option values: each parses a text or raises an error of one line."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError, make_unknown_error
from ..resources import find_model_shape
from ..units import parse_size

T = TypeVar("T")
EXPORT_FORMATS = ("asv", "github-action", "pytest-benchmark")


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A comma-separated list; argparse names the option when a value does not fit."""

    def parse(text: str) -> list[Any]:
        return [kind(part.strip()) for part in text.split(",")]

    return parse


def one_of(label: str, choices: Sequence[str]) -> Callable[[str], str]:
    """A parser for one of these choices."""

    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(str(make_unknown_error(label, text, choices)))
        return text

    return parse


def path(text: str) -> Path:
    """A file or folder to write; not empty, as an unset variable of a shell is."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def _whole_number(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {minimum}")
        return int(text)

    return parse


def _number(is_valid: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = _parse_float(text)
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {expected}")
        return value

    return parse


def _quantity(factors: Mapping[str, float], expected: str) -> Callable[[str], float]:
    """A parser for a positive number with a unit. factors: by unit; no unit may end in an earlier one."""

    def parse(text: str) -> float:
        unit = next((unit for unit in factors if text.endswith(unit)), "")
        value = _parse_float(text.removesuffix(unit))
        if not unit or not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return value * factors[unit]

    return parse


def _with_argparse_errors(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The same parser, raising the errors whose message argparse prints."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


count, seed = _whole_number(1), _whole_number(0)
seconds = _number(lambda value: 0 < value < math.inf, "of seconds above 0")
confidence = _number(lambda value: 0 < value < 1, "between 0 and 1, such as 0.95")
bound = _number(lambda value: 0 <= value < math.inf, "of at least 0")
milliseconds = _quantity({"ms": 1.0, "us": 1e-3, "s": 1e3}, "a time such as 50ms, 800us or 2s")
inches = _quantity(  # points are TeX's
    {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}, "a width such as 3.3in, 8.4cm, 84mm or 240pt"
)
size, shape = _with_argparse_errors(parse_size), _with_argparse_errors(find_model_shape)


def boolean(text: str) -> bool:
    """``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def share(text: str) -> float:
    """0.02 for 2%, or 2% itself."""
    value = _parse_float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0 and below 1, such as 0.05 or 5%")
    return value


LENGTH_UNITS = {"k": 2**10, "m": 2**20}


def length(text: str) -> int:
    """``16384`` or ``16K``, which is the same; ``1M`` is 1,048,576."""
    unit = LENGTH_UNITS.get(text[-1:].lower(), 1)
    number = text if unit == 1 else text[:-1]
    if not number.isdecimal() or not number.isascii() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1, such as 16384, 16K or 1M")
    return int(number) * unit


MODES = ("forward", "forward_backward", "prefill", "decode")
DTYPES = ("float32", "float64", "float16", "bfloat16")
DTYPE_ALIASES = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}


def dtype(text: str) -> str:
    """``bfloat16``, or ``bf16`` for short."""
    return one_of("dtype", DTYPES)(DTYPE_ALIASES.get(text, text))


def task_share(text: str) -> tuple[str, float]:
    """``TASK=SHARE``."""
    task, equals, value = text.partition("=")
    if not equals or not task:
        raise argparse.ArgumentTypeError(f"{text!r} is not TASK=SHARE, such as mqar=.95")
    return task, bound(value)


def key_value(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` with a TOML value, several values separated by commas, or any other text."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    parts = [_parse_toml(part.strip()) for part in value.split(",")] if value[0] not in "['\"" else [_parse_toml(value)]
    return name.strip(), parts if len(parts) > 1 else parts[0]


def export(text: str) -> tuple[str, Path]:
    """``FORMAT=FILE``; a folder for asv."""
    name, _, file = text.partition("=")
    one_of("format", EXPORT_FORMATS)(name)
    if not file:
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


def _parse_float(text: str) -> float:
    """The number; NaN, which no range contains, for other texts."""
    try:
        return float(text)
    except ValueError:
        return math.nan
