"""A section of the report as data: a task describes how its rows are shown, and run.json stores the description."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError

from ..units import Unit as Unit  # the format of a column's values; "time" is in ms, like all times in a row

PlotKind = Literal["line", "points", "bars"]


def _replace_unknown(choices: Any, default: str) -> BeforeValidator:
    """Read a choice of a later version as the default."""
    return BeforeValidator(lambda value: value if value in get_args(choices) else default)


_Line: TypeAlias = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]  # a text read as one line


class DamagedSection(UserWarning):
    """A section in a run's run.json that cannot be read, and was left out."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a section's table: its name in `ea.load`, its heading, and how its values are written."""

    name: _Line
    heading: _Line
    unit: Annotated[Unit, _replace_unknown(Unit, "number")] = "number"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Title, sentences, table columns, and a plot of ``y`` over ``x``, both column names of `ea.load`.

    name: lower case letters, digits and underscores, unique among sections; also the anchor on the page. task: whose
    rows it shows. layout: ``plain`` renders only these fields; the report has its own layouts for the sections of
    built-in tasks. suite, part: restrict it to rows of one part of a suite. Raises ValueError for invalid names.
    """

    name: _Line
    task: _Line
    title: _Line
    sentences: tuple[_Line, ...] = ()
    columns: tuple[Column, ...] = ()
    x: _Line | None = None
    y: _Line | None = None
    kind: Annotated[PlotKind, _replace_unknown(PlotKind, "line")] = "line"
    layout: _Line = "plain"
    suite: _Line | None = None
    part: _Line | None = None

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
            return TypeAdapter(cls).validate_python(data)
        except ValidationError as error:
            problem = error.errors()[0]
            raise ValueError(": ".join([*map(str, problem["loc"]), problem["msg"]])) from error
