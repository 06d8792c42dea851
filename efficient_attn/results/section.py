"""A section of the report as data: what a task says of its rows, kept in run.json, so that any reader can draw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Unit = Literal["time", "bytes", "ratio", "share", "error", "count", "number"]  # how a column's values are written
Kind = Literal["line", "points", "bars"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a section's table: its name in `ea.load`, its heading, and how its values are written."""

    name: str
    heading: str
    unit: Unit = "number"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Title, sentences, a table's columns, and a plot of ``y`` over ``x``, both names of columns in `ea.load`.

    name: unique among sections; its anchor on the page. task: whose rows it shows. layout: ``plain`` draws just what
    stands here; the report has layouts of its own for the sections of built-in tasks.
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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Section:
        """Read what `as_json` wrote; keys of a later version are left out. Raises ValueError for what is no section."""
        known = {f.name for f in fields(cls)}
        own = {name: value for name, value in said.items() if name in known}
        try:
            columns = tuple(Column(**column) for column in own.pop("columns", ()))
            return cls(**own | {"columns": columns, "sentences": tuple(own.get("sentences", ()))})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a section of a report: {error}") from error
