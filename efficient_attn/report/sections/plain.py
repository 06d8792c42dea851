"""Any task's section, drawn from what it says of its columns: a table of its rows, and a plot of y over x.

Neither the task's module nor what it imports is needed. Columns that the rows do not have are left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from ... import units
from ...results.section import Column, Section
from ...units import Unit
from .. import select, words
from ..drawing import plots
from ..drawing.axes import shorten
from ..drawing.figures import Line, Panel
from ..drawing.style import choose_looks, natural
from ..gather import Frame
from ..tables import Shown, Table, sort_value, trim
from .blocks import Block, Chapter, Material, make_blocks

HEADINGS = {"seq_len": "Length", "kv_len": "Keys", "layer": "Layer", "batch": "Batch"}  # of x where a task has none
SPREAD = 4.0  # values of x that lie further apart, each to the smallest, get a logarithmic axis
GROWING: tuple[Unit, ...] = ("time", "seconds", "bytes", "ratio", "error")  # a factor is a factor at any size
LONGEST = 60  # letters of a plot's title; a page has room for all of them


def make_chapter(section: Section, material: Material) -> Chapter:
    rows = material.rows
    rows = rows[(rows["status"] == "ok") & (rows["task"] == section.task)]
    return Chapter(section.title, " ".join(section.sentences), make_blocks(rows, material, partial(_fill, section)))


def _fill(section: Section, block: Block, setting: select.Setting, scene: plots.Scene) -> None:
    for piece in setting.slices:
        where = words.slice_words(piece.mode, piece.causal) if len(setting.slices) > 1 else ""
        rows = _order(piece.rows, section.x)
        block.tables.append(_make_table(section, rows, where))
        block.panels += _plan(section, rows, where, scene)


def _order(rows: Frame, x: str | None) -> Frame:
    """By x, numbers before text and what is empty last; then by variant."""
    known = rows[x].tolist() if x in rows else [None] * len(rows)
    keys = [(_place(value), natural(label)) for value, label in zip(known, rows["label"].tolist(), strict=True)]
    return rows.iloc[sorted(range(len(rows)), key=keys.__getitem__)]


def _place(value: Any) -> tuple[int, float, list[tuple[int, str]]]:
    """Where a value of x comes among others, whatever they are."""
    if not units.there(value):
        return 2, 0.0, []
    return (1, 0.0, natural(value)) if isinstance(value, str) else (0, float(value), [])


def _column(section: Section, name: str) -> Column:
    """What a section says of a column, or what goes without saying."""
    usual = Column(name=name, heading=HEADINGS.get(name, name.rpartition(".")[2].replace("_", " ")), unit="count")
    return next((column for column in section.columns if column.name == name), usual)


# -- the table -----------------------------------------------------------------------------------------------------


def _make_table(section: Section, rows: Frame, where: str) -> Table:
    """A row a row: the variant, x, and the section's columns."""
    shown = [_column(section, section.x)] if section.x else []
    shown += [column for column in section.columns if column.name != section.x]
    shown = [column for column in shown if column.name in rows]
    cells = [[Shown(label, label) for label in rows["label"].tolist()]]
    cells += [[_show(value, column.unit) for value in rows[column.name].tolist()] for column in shown]
    head = ("Variant", *(column.heading for column in shown))
    caption = f"{section.title}: {where}" if where else section.title
    return trim(Table(caption, head, list(zip(*cells, strict=True))))


def _show(value: Any, unit: Unit) -> Shown:
    text = units.write(value, unit)
    return Shown(text, text if isinstance(value, str) else sort_value(value))


# -- the plot ------------------------------------------------------------------------------------------------------


class _Across(NamedTuple):
    """The x axis: where each row stands, and the marks."""

    places: Sequence[float]
    ticks: dict[float, str]
    log: bool = False
    margin: float = 0.5


def _plan(section: Section, rows: Frame, where: str, scene: plots.Scene) -> Iterator[plots.Planned]:
    """The plot, or several where one would hold too many lines."""
    if section.y is None or section.y not in rows:
        return
    drawn = rows.assign(y=[_number(value) for value in rows[section.y].tolist()])
    drawn = drawn[drawn["y"].notna() & (drawn[section.x].notna() if section.x in drawn else True)]
    drawn = drawn.assign(name=_name_lines(section, drawn))
    names = list(dict.fromkeys(drawn["name"]))
    groups = [names[i : i + plots.MOST_LINES] for i in range(0, len(names), plots.MOST_LINES)]
    for number, group in enumerate(groups, 1):
        some = f"{number} of {len(groups)}" if len(groups) > 1 else ""
        y = _column(section, section.y)
        title = ": ".join(filter(None, (y.heading, ", ".join(filter(None, (where, some))))))
        name = words.slug("section", section.name, where, some, scene.suffix)
        make = _plan_panel(section, drawn[drawn["name"].isin(group)], name, title, scene)
        flat = section.x not in drawn or drawn[section.x].nunique() == 1
        yield plots.Planned(name, section.name, title, len(group), make, flat=flat)


def _number(value: Any) -> float:
    return float(value) if units.there(value) and isinstance(value, float | int) else float("nan")


def _name_lines(section: Section, rows: Frame) -> list[str]:
    """What each row's line is called: its variant, and in brackets the section's words that differ between rows."""
    names = rows["label"].tolist()
    for column in section.columns:
        values = rows[column.name].tolist() if column.name in rows and column.name not in (section.x, section.y) else []
        if len(set(values)) > 1 and all(isinstance(v, str | bool) for v in values):
            told = (f"({column.heading}: {units.write(v, column.unit)})" for v in values)
            names = [f"{name} {text}" for name, text in zip(names, told, strict=True)]
    return names


def _plan_panel(section: Section, rows: Frame, name: str, title: str, scene: plots.Scene) -> Callable[[], Panel]:
    return lambda: _make_panel(section, rows, name, title, scene)


def _make_panel(section: Section, rows: Frame, name: str, title: str, scene: plots.Scene) -> Panel:
    x, y = _column(section, section.x or ""), _column(section, section.y or "")
    across = _set_across(section, rows, x.unit)
    over = f" over {x.heading[:1].lower()}{x.heading[1:]}" if section.x in rows else ""
    lines = _make_lines(rows.assign(x=across.places), y.unit, scene)
    return Panel(
        name=name,
        kind=section.name,
        title=textwrap.shorten(title, LONGEST, placeholder=" ..."),
        place=scene.place,
        caption=f"{section.title}. {title}{over}.",
        xlabel=textwrap.shorten(x.heading if over else "", LONGEST, placeholder=" ..."),
        ylabel=textwrap.shorten(y.heading, LONGEST // 2, placeholder=" ..."),
        unit=y.unit,
        lines=lines,
        ticks=across.ticks,
        log_x=across.log,
        margin=across.margin,
        log_y=_is_logarithmic(section, y.unit, rows["y"].tolist()),
        drawn=section.kind,
        alt=f"{section.title}: {title}{over}, for {words.join(line.label for line in lines)}.",
    )


def _set_across(section: Section, rows: Frame, unit: Unit) -> _Across:
    """Numbers as they are; for bars, and for what is no number, a place each beside the others."""
    known = rows[section.x].tolist() if section.x in rows else [""] * len(rows)
    distinct = sorted(set(known), key=_place)
    if section.kind == "bars" or any(isinstance(value, str | bool) for value in distinct):
        places = {value: float(i) for i, value in enumerate(distinct)}
        ticks = {place: _mark(value, section.x, unit) for value, place in places.items()}
        return _Across([places[value] for value in known], ticks)
    ticks = {float(value): _mark(value, section.x, unit) for value in distinct}
    low, high = min(ticks), max(ticks)
    if low > 0 and high >= SPREAD * low:
        return _Across([float(value) for value in known], ticks, log=True)
    return _Across([float(value) for value in known], ticks, margin=0.04 * (high - low) or 0.5)


def _mark(value: Any, x: str | None, unit: Unit) -> str:
    return units.short_length(value) if x in ("seq_len", "kv_len") else shorten(units.write(value, unit))


def _is_logarithmic(section: Section, unit: Unit, values: Sequence[float]) -> bool:
    """Where values grow by factors; bars and shares start at zero."""
    if section.kind == "bars" or unit == "share" or min(values) <= 0:
        return False
    return unit in GROWING or max(values) >= 10 * min(values)


def _make_lines(rows: Frame, unit: Unit, scene: plots.Scene) -> tuple[Line, ...]:
    """A line a name, with its last value beside it."""
    known = {**choose_looks(rows["name"]), **scene.looks}
    lines = []
    for name, own in rows.groupby("name", sort=False):
        x, y = own["x"].tolist(), own["y"].tolist()
        lines.append(Line(str(name), known[name], x, y, note=units.write(y[-1], unit)))
    return tuple(lines)
