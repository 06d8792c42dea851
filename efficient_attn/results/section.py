"""A section of the report as data: a task describes how its rows are shown, and run.json stores the description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from ..units import Unit as Unit  # the format of a column's values; "time" is in ms, like all times in a row

PlotKind = Literal["line", "points", "bars"]


class DamagedSection(UserWarning):
    """A section in a run's run.json that cannot be read, and was left out."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a section's table: its name in `ea.load`, its heading, and how its values are written."""

    name: str
    heading: str
    unit: Unit = "number"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Title, sentences, table columns, and a plot of ``y`` over ``x``, both column names of `ea.load`.

    name: lower case letters, digits and underscores, unique among sections; also the anchor on the page. task: whose
    rows it shows. layout: ``plain`` renders only these fields; the report has its own layouts for the sections of
    built-in tasks. suite, part: restrict it to rows of one part of a suite. Raises ValueError for invalid names.
    """

    name: str
    task: str
    title: str
    sentences: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    x: str | None = None
    y: str | None = None
    kind: PlotKind = "line"
    layout: str = "plain"
    suite: str | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9_]+", self.name):
            raise ValueError(f"the section's name {self.name!r} is not of lower case letters, digits and underscores")

    def as_json(self) -> dict[str, Any]:
        """The section as data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Section:
        """Read what `as_json` wrote. Raises ValueError for anything else.

        In sections of later versions unknown keys are ignored, an unknown unit becomes a plain number, and an unknown
        kind a line.
        """
        try:
            values = _select_fields(cls, data)
            values["columns"] = tuple(_read_column(item) for item in _read_list(values.get("columns", ())))
            values["sentences"] = tuple(_read_text(item) for item in _read_list(values.get("sentences", ())))
            required = [name for name in ("name", "task", "title", "layout") if name in values]
            optional = [name for name in ("x", "y", "suite", "part") if values.get(name) is not None]
            values |= {name: _read_text(values[name]) for name in required + optional}
            return cls(**values | {"kind": _read_choice(PlotKind, values.get("kind"), "line")})
        except TypeError as error:
            raise ValueError(str(error)) from error


def _read_column(data: Any) -> Column:
    values = _select_fields(Column, data)
    texts = {name: _read_text(values[name]) for name in ("name", "heading") if name in values}
    return Column(**texts, unit=_read_choice(Unit, values.get("unit"), "number"))


def _select_fields(kind: type, data: Any) -> dict[str, Any]:
    """The keys of a table that a class has as fields."""
    if not isinstance(data, Mapping):
        raise ValueError(f"expected a table of keys, got {data!r}")
    return {f.name: data[f.name] for f in fields(kind) if f.name in data}


def _read_list(data: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"expected a list, got {data!r}")
    return data


def _read_text(data: Any) -> str:
    """A text in one line."""
    if not isinstance(data, str):
        raise ValueError(f"expected a text, got {data!r}")
    return " ".join(data.split())


def _read_choice(choices: Any, value: Any, default: str) -> Any:
    return value if value in get_args(choices) else default
