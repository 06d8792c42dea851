"""Readings of the machine: a value, or the reason why it is unknown."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

ROOT = Path("/")
T = TypeVar("T")


class Unknown(NamedTuple):
    """A fact that the machine does not report, and the reason."""

    reason: str


def read_text(path: Path) -> str | Unknown:
    """The content of a small file without the line end."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError as error:
        return Unknown(f"{path}: {os.strerror(error.errno) if error.errno else error}")


def read_number(path: Path) -> int | Unknown:
    """Read a file with one integer."""
    value = read_text(path)
    if isinstance(value, Unknown):
        return value
    return int(value) if value.lstrip("-").isdigit() else Unknown(f"{path} contains no integer: {value[:40]!r}")


def read_table(path: Path, separator: str | None = None) -> dict[str, str] | Unknown:
    """Read a file of ``name value`` or ``name: value`` lines; of repeated names, the first counts."""
    content = read_text(path)
    if isinstance(content, Unknown):
        return content
    rows: dict[str, str] = {}
    for line in content.splitlines():
        name, _, value = line.partition(separator or " ")
        rows.setdefault(name.strip(), value.strip())
    return rows


def try_reading(read: Callable[[], Any], *errors: type[Exception]) -> Any:
    """The result of a function, or an `Unknown` with the reason for one of the given errors."""
    try:
        return read()
    except errors as error:
        return Unknown(f"{type(error).__name__}: {' '.join(str(error).split())}"[:200])


def value_or_none(fact: T | Unknown) -> T | None:
    """The value, or None if it is unknown."""
    return None if isinstance(fact, Unknown) else fact


def split_unknowns(facts: dict[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """Plain values with None for unknown ones, and the reasons for these by their dotted names."""
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, fact in facts.items():
        dotted = f"{prefix}{name}"
        if isinstance(fact, Unknown):
            values[name], reasons[dotted] = None, fact.reason
        elif isinstance(fact, dict):
            values[name], inner = split_unknowns(fact, f"{dotted}.")
            reasons |= inner
        else:
            values[name] = fact
    return values, reasons
