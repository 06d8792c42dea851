"""A section of the report as data: what a task says of its rows, kept in run.json, so that any reader can draw it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from ..units import Unit as Unit  # how a column's values are written; "time" is in ms, as in all of a row's own columns

Kind = Literal["line", "points", "bars"]


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
    """Title, sentences, a table's columns, and a plot of ``y`` over ``x``, both names of columns in `ea.load`.

    name: lower case letters, digits and underscores, unique among sections; its anchor on the page. task: whose rows
    it shows. layout: ``plain`` draws just what stands here; the report has layouts of its own for the sections of
    built-in tasks. suite, part: whose rows it shows alone, where it is about one part of a suite. Raises ValueError for
    another name.
    """

    name: str
    task: str
    title: str
    sentences: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    x: str | None = None
    y: str | None = None
    kind: Kind = "line"
    layout: str = "plain"
    suite: str | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9_]+", self.name):
            raise ValueError(f"the section's name {self.name!r} is not of lower case letters, digits and underscores")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, said: Any) -> Section:
        """Read what `as_json` wrote. Raises ValueError for what is no section.

        Of a later version, keys are left out, an unknown unit is a plain number's, and an unknown kind a line.
        """
        try:
            own = _known(cls, said)
            own["columns"] = tuple(_column(one) for one in _list(own.get("columns", ())))
            own["sentences"] = tuple(_line(one) for one in _list(own.get("sentences", ())))
            own |= {name: _line(own[name]) for name in ("name", "task", "title", "layout") if name in own}
            own |= {name: _line(own[name]) for name in ("x", "y", "suite", "part") if own.get(name) is not None}
            return cls(**own | {"kind": _one_of(Kind, own.get("kind"), "line")})
        except TypeError as error:
            raise ValueError(str(error)) from error


def _column(said: Any) -> Column:
    own = _known(Column, said)
    texts = {name: _line(own[name]) for name in ("name", "heading") if name in own}
    return Column(**texts, unit=_one_of(Unit, own.get("unit"), "number"))


def _known(kind: type, said: Any) -> dict[str, Any]:
    """What a class knows of a table's keys."""
    if not isinstance(said, Mapping):
        raise ValueError(f"expected a table of keys, got {said!r}")
    return {f.name: said[f.name] for f in fields(kind) if f.name in said}


def _list(said: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(said, list | tuple):
        raise ValueError(f"expected a list, got {said!r}")
    return said


def _line(said: Any) -> str:
    """A text in one line."""
    if not isinstance(said, str):
        raise ValueError(f"expected a text, got {said!r}")
    return " ".join(said.split())


def _one_of(choices: Any, said: Any, usual: str) -> Any:
    return said if said in get_args(choices) else usual
