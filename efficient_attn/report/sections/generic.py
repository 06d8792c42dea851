"""Section of any task, from the description of its columns: a table of its rows, and a plot of y over x.

The task's module need not be importable. Columns that the rows lack are omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ... import units
from ...results.section import Column, Section
from ...units import Unit
from .. import formatting, select
from ..drawing.axes import strip_zeros
from ..drawing.figures import PlotContext
from ..drawing.panel_data import SINGLE_LENGTH_RANK, Line, Panel
from ..drawing.style import LineStyles, choose_line_styles, make_natural_sort_key
from ..gather import Frame
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_value
from .section_blocks import Chapter, SectionBlock, SectionData, make_blocks

# headings of columns that a section does not describe
DEFAULT_HEADINGS = {"seq_len": "Length", "kv_len": "Keys", "layer": "Layer", "batch": "Batch"}
LOG_AXIS_SPREAD = 4.0  # ratio of the largest to the smallest x from which on the axis is logarithmic
GROWING_UNITS: tuple[Unit, ...] = ("time", "seconds", "bytes", "ratio", "error")  # units with logarithmic axes


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter of a task without a chapter of its own."""
    rows = section_data.rows
    rows = rows[(rows["status"] == "ok") & (rows["task"] == section.task)]
    blocks = make_blocks(rows, section_data, partial(_fill_block, section))
    return Chapter(section.title, " ".join(section.sentences), blocks)


def _fill_block(section: Section, block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    for piece in setting.slices:
        slice_text = formatting.format_slice(piece.mode, piece.causal) if len(setting.slices) > 1 else ""
        rows = _sort_rows(piece.rows, section.x)
        block.tables.append(_make_table(section, rows, slice_text))
        panel = _make_panel(section, rows, slice_text, context.line_styles)
        block.pictures += context.name_parts(panel, section.name, "section", section.name, slice_text)


def _sort_rows(rows: Frame, x: str | None) -> Frame:
    """Sort by x, numbers before text and missing values last; then by variant."""
    x_keys = map(_make_sort_key, rows[x].tolist() if x in rows else [None] * len(rows))
    keys = list(zip(x_keys, map(make_natural_sort_key, rows["label"].tolist()), strict=True))
    return rows.iloc[sorted(range(len(rows)), key=keys.__getitem__)]


def _make_sort_key(value: Any) -> tuple[int, float, list[tuple[int, str]]]:
    if not units.is_present(value):
        return 2, 0.0, []
    return (1, 0.0, make_natural_sort_key(value)) if isinstance(value, str) else (0, float(value), [])


def _find_column(section: Section, name: str) -> Column:
    """A section's description of a column, or a default."""
    heading = DEFAULT_HEADINGS.get(name, name.rpartition(".")[2].replace("_", " "))
    default = Column(name=name, heading=heading, unit="count")
    return next((column for column in section.columns if column.name == name), default)


def _make_table(section: Section, rows: Frame, slice_text: str) -> ReportTable:
    columns = [_find_column(section, section.x)] if section.x else []
    columns += [column for column in section.columns if column.name != section.x]
    columns = [column for column in columns if column.name in rows]
    cells = [[ReportCell(label) for label in rows["label"].tolist()]]
    cells += [[show_value(value, column.unit) for value in rows[column.name].tolist()] for column in columns]
    head = ("Variant", *(column.heading for column in columns))
    caption = f"{section.title}: {slice_text}" if slice_text else section.title
    return drop_empty_columns(ReportTable(caption, head, list(zip(*cells, strict=True))))


def _as_number(value: Any) -> float:
    return float(value) if units.is_present(value) and isinstance(value, float | int) else float("nan")


def _name_lines(section: Section, rows: Frame) -> list[str]:
    """Name of each row's line: the variant, with text columns that differ between rows in parentheses."""
    names = rows["label"].tolist()
    for column in section.columns:
        values = rows[column.name].tolist() if column.name in rows and column.name not in (section.x, section.y) else []
        if len(set(values)) > 1 and all(isinstance(v, str | bool) for v in values):
            suffixes = (f"({column.heading}: {units.format_value(v, column.unit)})" for v in values)
            names = [f"{name} {text}" for name, text in zip(names, suffixes, strict=True)]
    return names


def _make_panel(section: Section, rows: Frame, slice_text: str, line_styles: LineStyles) -> Panel | None:
    if section.y is None or section.y not in rows:
        return None
    rows = rows.assign(y=[_as_number(value) for value in rows[section.y].tolist()])
    rows = rows[rows["y"].notna() & (rows[section.x].notna() if section.x in rows else True)]
    if rows.empty:
        return None
    x, y = _find_column(section, section.x or ""), _find_column(section, section.y)
    positions, x_axis = _make_x_axis(section, rows, x.unit)
    over_text = f" over {x.heading[:1].lower()}{x.heading[1:]}" if section.x in rows else ""
    title = ": ".join(filter(None, (y.heading, slice_text)))
    return Panel(
        title=title,
        caption=f"{section.title}. {title}{over_text}.",
        xlabel=x.heading if over_text else "",
        ylabel=y.heading,
        unit=y.unit,
        lines=_make_lines(rows.assign(x=positions, name=_name_lines(section, rows)), y.unit, line_styles),
        log_y=_is_logarithmic(section, y.unit, rows["y"].tolist()),
        mark_type=section.kind,
        rank=SINGLE_LENGTH_RANK * (len(x_axis["ticks"]) == 1),
        **x_axis,
    )


def _make_x_axis(section: Section, rows: Frame, unit: Unit) -> tuple[list[float], dict[str, Any]]:
    """The position of each row, and the fields of the panel's x axis.

    Numbers are positions; for bars and other types, there is one position per distinct value.
    """
    x_values = rows[section.x].tolist() if section.x in rows else [""] * len(rows)
    distinct = sorted(set(x_values), key=_make_sort_key)
    by_position = section.kind == "bars" or any(isinstance(value, str | bool) for value in distinct)
    positions = {value: float(i if by_position else value) for i, value in enumerate(distinct)}
    ticks = {position: _format_tick(value, section.x, unit) for value, position in positions.items()}
    x, low, high = [positions[value] for value in x_values], min(ticks), max(ticks)
    is_log = not by_position and low > 0 and high >= LOG_AXIS_SPREAD * low
    return x, {"ticks": ticks, "log_x": is_log, "margin": 0.5 if by_position else 0.04 * (high - low) or 0.5}


def _format_tick(value: Any, x: str | None, unit: Unit) -> str:
    return units.short_length(value) if x in ("seq_len", "kv_len") else strip_zeros(units.format_value(value, unit))


def _is_logarithmic(section: Section, unit: Unit, values: Sequence[float]) -> bool:
    """Whether y is logarithmic; bars and shares start at zero."""
    if section.kind == "bars" or unit == "share" or min(values) <= 0:
        return False
    return unit in GROWING_UNITS or max(values) >= 10 * min(values)


def _make_lines(rows: Frame, unit: Unit, known_styles: LineStyles) -> tuple[Line, ...]:
    """One line per name, labeled with its last value."""
    line_styles = {**choose_line_styles(rows["name"]), **known_styles}
    lines = []
    for name, line_rows in rows.groupby("name", sort=False):
        x, y = line_rows["x"].tolist(), line_rows["y"].tolist()
        lines.append(Line(str(name), line_styles[name], x, y, note=units.format_value(y[-1], unit)))
    return tuple(lines)
