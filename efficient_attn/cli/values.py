"""Types of option values: each parses a text or raises an error of one line."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError, make_unknown_error
from ..resources import find_model_shape
from ..units import parse_size

T = TypeVar("T")
EXPORT_FORMATS = ("asv", "github-action", "pytest-benchmark")
MODES = ("forward", "forward_backward", "prefill", "decode")
DTYPES = ("float32", "float64", "float16", "bfloat16")
DTYPE_ALIASES = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
LENGTH_UNITS = {"k": 2**10, "m": 2**20}


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A comma-separated list; argparse names the option when a value does not fit."""

    def parse(text: str) -> list[Any]:
        return [kind(part.strip()) for part in text.split(",")]

    return parse


def _value(
    convert: Callable[[str], T], expected: str, is_valid: Callable[[T], bool] = lambda value: True
) -> Callable[[str], T]:
    """A parser that raises ``'TEXT' EXPECTED`` if the conversion raises `ValueError` or its result is not valid."""

    def parse(text: str) -> T:
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not is_valid(value):
            raise argparse.ArgumentTypeError(f"{text!r} {expected}")
        return value

    return parse


def _with_argparse_errors(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The same parser, raising the errors whose message argparse prints."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def one_of(label: str, choices: Sequence[str]) -> Callable[[str], str]:
    """A parser for one of these choices."""

    def find(text: str) -> str:
        if text not in choices:
            raise make_unknown_error(label, text, choices)
        return text

    return _with_argparse_errors(find)


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError
    return int(text)


def _quantity(units: Mapping[str, float], text: str) -> float:
    """A positive number with a unit. units: their factors; no unit may end in an earlier one."""
    unit = next(unit for unit in (*units, "") if text.endswith(unit))
    value = float(text.removesuffix(unit))
    if not unit or not 0 < value < math.inf:
        raise ValueError
    return value * units[unit]


def _share(text: str) -> float:
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def _length(text: str) -> int:
    unit = LENGTH_UNITS.get(text[-1:].lower(), 1)
    if not text.isascii():
        raise ValueError
    return _whole_number(text if unit == 1 else text[:-1]) * unit


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, or too large or too deep
        return text


size, shape = _with_argparse_errors(parse_size), _with_argparse_errors(find_model_shape)
count = _value(_whole_number, "is not a whole number of at least 1", lambda value: value >= 1)
seed = _value(_whole_number, "is not a whole number of at least 0")
seconds = _value(float, "is not a number of seconds above 0", lambda value: 0 < value < math.inf)
confidence = _value(float, "is not a number between 0 and 1, such as 0.95", lambda value: 0 < value < 1)
bound = _value(float, "is not a number of at least 0", lambda value: 0 <= value < math.inf)
milliseconds = _value(partial(_quantity, {"ms": 1.0, "us": 1e-3, "s": 1e3}), "is not a time such as 50ms, 800us or 2s")
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # points are TeX's
inches = _value(partial(_quantity, INCHES), "is not a width such as 3.3in, 8.4cm, 84mm or 240pt")
# 0.02 for 2%, or 2% itself
share = _value(_share, "is not a number of at least 0 and below 1, such as 0.05 or 5%", lambda value: 0 <= value < 1)
# 16384 or 16K, which is the same; 1M is 1,048,576
length = _value(_length, "is not an integer of at least 1, such as 16384, 16K or 1M", lambda value: value >= 1)
_booleans = {"true": True, "false": False}
boolean = _value(lambda text: _booleans.get(text.lower()), "is neither true nor false")
PICTURES = (".png", ".svg", ".pdf")
picture = _value(Path, "does not end in .png, .svg or .pdf", lambda file: file.suffix.lower() in PICTURES)


def path(text: str) -> Path:
    """A file or folder to write; not empty, as an unset variable of a shell is."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


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
    parts = [_toml(part.strip()) for part in value.split(",")] if value[0] not in "['\"" else [_toml(value)]
    return name.strip(), parts if len(parts) > 1 else parts[0]


def name_value(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` with any text."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def export(text: str) -> tuple[str, Path]:
    """``FORMAT=FILE``; a folder for asv."""
    name, _, file = text.partition("=")
    one_of("format", EXPORT_FORMATS)(name)
    if not file:
        raise argparse.ArgumentTypeError(f"{text!r} names no file; write {name}=FILE")
    return name, Path(file)


class OnceAction(argparse.Action):
    """An option with one value and no default, which may be given only once."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        """Store a value; an error if the option was given before."""
        if getattr(namespace, self.dest, None) is not None:
            raise argparse.ArgumentError(self, "given twice; give it only once")
        setattr(namespace, self.dest, values)
