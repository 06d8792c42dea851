"""Plots over sequence length: select those that a setting's rows allow, and rank them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ... import units
from ...units import Unit
from .. import formatting, select
from ..gather import Frame
from .axes import choose_clipped_limits, compute_log_limits, make_y_ticks
from .figures import PlotContext
from .panel_data import MOST_LINES, SINGLE_LENGTH_RANK, Line, Panel, Picture, make_dot_plot


class LengthPlot(NamedTuple):
    """A kind of plot over lengths: the column that it shows, and its texts."""

    name: str
    column: str
    unit: Unit
    title: str
    ylabel: str
    caption: str  # after the title
    level: float | None = None  # value of the baseline, if values are relative to it
    rank: int = 0  # if not all plots can be drawn, lower ones come first
    max_lines: int = MOST_LINES  # of a panel, if there are several families


GROWTH_NOTE = "; N^a is the fitted growth"
MEDIAN_CAPTION = f"Median over rounds, with its 95% interval{GROWTH_NOTE}"
_SPEEDUP_CAPTION = "Time of {baseline} over each variant's, paired by round, with its 95% interval; above 1x is faster"
SPEEDUP = LengthPlot(
    "speedup", "speedup", "ratio", "Speedup", "speedup over {baseline}", _SPEEDUP_CAPTION, level=1.0, max_lines=6
)


def make_length_plots(
    setting: select.SettingRows, kinds: tuple[LengthPlot, ...], context: PlotContext
) -> Iterator[Picture]:
    """Plots of these kinds, one per mode and direction; the directions of a mode share y limits."""
    for kind in kinds:
        slices = [replace(piece, rows=_filter_drawable(piece.rows, kind)) for piece in setting.slices]
        slices = [piece for piece in slices if len(piece.rows)]
        for mode in dict.fromkeys(piece.mode for piece in slices):
            mode_slices = [piece for piece in slices if piece.mode == mode]
            bounds = _compute_shared_limits([piece.rows for piece in mode_slices], kind)
            for piece in mode_slices:
                yield from _make_plots(setting.baseline, piece, kind, context, bounds)


def _filter_drawable(rows: Frame, kind: LengthPlot) -> Frame:
    """Rows with a positive value; without the baseline in plots relative to it."""
    drawable = rows[kind.column].to_numpy() > 0
    if kind.level is not None:
        drawable = drawable & ~rows["is_baseline"].to_numpy(dtype=bool)
    return rows if drawable.all() else rows[drawable]


def _compute_shared_limits(parts: Sequence[Frame], kind: LengthPlot) -> tuple[float, float]:
    """y limits of all rows, without one outlying line."""
    names, values_by_label = (kind.column, *_list_interval_columns(kind)), {}
    for rows in parts:
        for label, *values in zip(rows["label"].tolist(), *(rows[name].tolist() for name in names), strict=True):
            values_by_label.setdefault(label, []).extend(value for value in values if value > 0)
    return choose_clipped_limits(values_by_label, kind.level)


def _make_plots(
    baseline: str, piece: select.Slice, kind: LengthPlot, context: PlotContext, bounds: tuple[float, float]
) -> Iterator[Picture]:
    slice_text = formatting.format_slice(piece.mode, None if piece.mode == "decode" else piece.causal)
    lengths = sorted(set(piece.rows["seq_len"].tolist()))
    is_single, rank = len(lengths) == 1, kind.rank + SINGLE_LENGTH_RANK * (len(lengths) == 1)
    for family, rows in _split_by_family(piece.rows, MOST_LINES if is_single else kind.max_lines):
        title = ", ".join(filter(None, (f"{kind.title}: {slice_text}", family)))
        lines = tuple(_make_line(label, x, kind, context) for label, x in select.split_variants(rows).items())
        caption = f"{title}. {kind.caption.format(baseline=baseline)}.{describe_clipped(lines, bounds, kind.unit)}"
        panel = Panel(
            title=title,
            caption=caption,
            xlabel="context length" if piece.mode == "decode" else "sequence length",
            ylabel=kind.ylabel.format(baseline=baseline),
            unit=kind.unit,
            lines=lines,
            ticks={x: units.short_length(x) for x in lengths},
            level=kind.level,
            level_text=baseline if kind.level is not None else "",
            bounds=bounds,
        )
        panel = _turn_to_dots(panel, lengths[0], bounds) if is_single else panel
        names = kind.name, piece.mode, formatting.format_direction(piece.causal), family
        yield from context.name_parts(panel, kind.name, *names, rank=rank, mode=piece.mode)


def _split_by_family(rows: Frame, most: int) -> Iterator[tuple[str, Frame]]:
    """The rows of one plot, or of one per family, with the baseline in each, if there are too many lines. most: lines
    of a plot, if there are several families."""
    if rows["label"].nunique() <= (most if rows["family"].nunique() > 1 else MOST_LINES):
        yield "", rows
        return
    for family, part in rows[~rows["is_baseline"]].groupby("family", dropna=False, sort=False):
        name, labels = str(family) if units.is_present(family) else "other", list(dict.fromkeys(part["label"]))
        for batch_text, batch in formatting.split_batches(labels, MOST_LINES - 1):
            yield f"{name} {batch_text}".rstrip(), rows[rows["is_baseline"] | rows["label"].isin(batch)]


def _turn_to_dots(panel: Panel, length: float, bounds: tuple[float, float]) -> Panel:
    """The dot plot of a panel of one length, smallest value below."""
    dot_lines = [
        replace(line, x=line.y, y=[float(i)], low=None, high=None, left=line.low, right=line.high)
        for i, line in enumerate(sorted(panel.lines, key=lambda line: line.y[0]))
    ]
    dot_lines = [replace(line, note=units.format_value(line.x[0], panel.unit)) for line in dot_lines]
    clipped = [min(max(line.x[0], bounds[0]), bounds[1]) for line in dot_lines]
    marks = make_y_ticks(panel.unit, *compute_log_limits(clipped, panel.level))
    title, ticks = f"{panel.title}, {units.short_length(length)}", {clipped[0]: "", clipped[-1]: "", **marks}
    return make_dot_plot(
        dot_lines, panel.unit, title=title, caption=panel.caption, xlabel=panel.ylabel, ticks=ticks, level_x=panel.level
    )


def _make_line(label: str, arrays: select.ColumnArrays, kind: LengthPlot, context: PlotContext) -> Line:
    x, y, *interval = select.sort_series(arrays, kind.column, *_list_interval_columns(kind))
    growth = select.fit_growth(arrays, kind.column) if kind.level is None else None
    power = f"N^{units.exponent_interval(growth.value)}" if growth and select.is_precise_growth(growth) else ""
    note = units.ratio(y[-1]) if kind.level is not None else power
    line = Line(label, context.line_styles[label], x, y, note=note)
    has_interval = len(interval) == 2 and all(value > 0 for end in interval for value in end)
    return replace(line, low=interval[0], high=interval[1]) if has_interval else line


def describe_clipped(lines: Sequence[Line], bounds: tuple[float, float], unit: Unit) -> str:
    """Sentence that names clipped lines and their farthest values; empty if there are none."""
    low, high = bounds
    texts = []
    for line in lines:
        clipped = [y for y in line.y if not low <= y <= high]
        if clipped:
            farthest = max(clipped, key=lambda y: abs(math.log(y)))
            texts.append(f"{line.label} ({units.format_value(farthest, unit)})")
    return f" Beyond the axis, marked at its edge: {', '.join(texts)}." if texts else ""


def _list_interval_columns(kind: LengthPlot) -> list[str]:
    """Columns of the confidence interval; none for memory."""
    return [name for name in (f"{kind.column}_low", f"{kind.column}_high") if name in select.CURVE_COLUMNS]
