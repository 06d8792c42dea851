"""Figures of costs: speedup and memory over length, and the length from which each mechanism is faster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from ... import units
from ...results.stats import Estimate
from .. import select
from ..answers.crossovers import Crossover, CrossoverKind, format_crossover
from ..drawing.figures import PlotContext
from ..drawing.length_plots import SPEEDUP, LengthPlot, make_length_plots
from ..drawing.panel_data import Line, Panel, make_dot_plot, make_point
from ..drawing.style import LineStyle, LineStyles
from ..sections import decode_cost, speed
from .selection import PlotRows
from .table_columns import PaperFigure, TableCell, TableColumn, add_errors, make_estimate_cell

MAX_LINES = 8  # of a picture, that a reader can distinguish; a table has all
SUPERSCRIPTS = str.maketrans("0123456789.-", "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u02d9\u207b")
CROSSOVER_SYMBOLS = (
    "Bars: where the ends of the 95% interval of the speedup cross 1; open triangles: faster at all measured lengths "
    "(left), or at none (right)."
)


def rank_by_speedup(plot_rows: PlotRows) -> list[str]:
    """Labels by speed at the longest length, fastest first."""
    return [decision.label for decision in plot_rows.decisions]


def make_speed_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """Speedups over the baseline, from paired ratios."""
    speedups = {decision.label: decision.speedups for decision in plot_rows.decisions if decision.label in labels}
    columns = _make_length_columns(speedups, lambda speedup: make_estimate_cell(speedup, units.ratio))
    caption = f"Speedup over {plot_rows.baseline} by length, with 95% intervals"
    return add_errors(PaperFigure(_draw(SPEEDUP, plot_rows, labels, line_styles), columns, caption), plot_rows)


def _make_length_columns(
    values_by_label: Mapping[str, Mapping[Any, Any]], make_cell: Callable[[Any], TableCell]
) -> list[TableColumn]:
    """A column for each length of these values, with an empty cell for None."""
    lengths = sorted({length for values in values_by_label.values() for length in values})
    return [
        TableColumn(units.short_length(n), {label: make_cell(x.get(n)) for label, x in values_by_label.items()}, int(n))
        for n in lengths
    ]


def _draw(kind: LengthPlot, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> Panel:
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels[:MAX_LINES]) | plot_rows.rows["is_baseline"]]
    setting = select.SettingRows({name: plot_rows.config[name] for name in select.SETTING_COLUMNS}, rows)
    kind = kind._replace(max_lines=MAX_LINES + 1)  # with the baseline
    (panel,) = make_length_plots(setting, (kind,), PlotContext(line_styles))
    assert isinstance(panel, Panel)
    return replace(panel, lines=tuple(replace(line, note=_raise_exponent(line.note)) for line in panel.lines))


def _raise_exponent(note: str) -> str:
    """``N^0.97`` with a superscript."""
    return re.sub(r"N\^([\d.-]+)", lambda match: "N" + match[1].translate(SUPERSCRIPTS), note)


def _choose_memory_kind(plot_rows: PlotRows) -> LengthPlot:
    """State size for decoding, peak memory otherwise."""
    return decode_cost.STATE_PLOT if plot_rows.config["mode"] == "decode" else speed.MEMORY_PLOT


def rank_by_memory(plot_rows: PlotRows) -> list[str]:
    """Labels by their longest measured length, longest first, then by memory there, least first."""
    column = _choose_memory_kind(plot_rows).column
    measured_rows = plot_rows.rows[(plot_rows.rows[column] > 0) & ~plot_rows.rows["is_baseline"].astype(bool)]
    last = measured_rows.sort_values("seq_len", kind="stable").groupby("label", sort=False).tail(1)
    return last.sort_values(["seq_len", column, "label"], ascending=[False, True, True])["label"].tolist()


def make_memory_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """Peak memory, or the size of the decoding state, with its growth."""
    kind, arrays_by_label = _choose_memory_kind(plot_rows), select.split_variants(plot_rows.rows)
    arrays_by_label = {label: arrays_by_label[label] for label in [*sorted(plot_rows.baseline_labels), *labels]}
    sizes = {label: dict(zip(*select.sort_series(x, kind.column), strict=True)) for label, x in arrays_by_label.items()}
    columns = _make_length_columns(
        {label: by_length for label, by_length in sizes.items() if by_length},
        lambda size: TableCell(units.size(size)),
    )
    growth = {label: select.fit_growth(x, kind.column) for label, x in arrays_by_label.items()}
    exponents = {
        label: TableCell(f"N^{units.exponent_interval(x.value)}")
        for label, x in growth.items()
        if x and select.is_precise_growth(x)
    }
    columns += [TableColumn("Growth", exponents)] if exponents else []
    decodes = plot_rows.config["mode"] == "decode"
    value = "Size of the decoding state" if decodes else "Peak memory of a call with its output"
    notes = ("N^a is the fitted growth.",) if exponents else ()
    panel = _draw(kind, plot_rows, labels, line_styles)
    return add_errors(PaperFigure(panel, columns, f"{value} by length", notes), plot_rows)


# -- crossovers ----------------------------------------------------------------------------------------------------


def rank_crossovers(plot_rows: PlotRows) -> list[str]:
    """Labels with a crossover, fastest at the longest length first."""
    return [decision.label for decision in plot_rows.decisions if decision.crossover is not None]


def make_crossover_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """The lengths from which mechanisms are faster, and their speedups at the longest length."""
    decisions = [decision for decision in plot_rows.decisions if decision.label in labels]
    crossovers = {d.label: d.crossover for d in decisions if d.crossover is not None}
    speedups = {d.label: d.speedups for d in decisions if d.crossover is not None}
    longest = max(n for by_length in speedups.values() for n in by_length)
    cells = {label: make_estimate_cell(x.get(longest), units.ratio) for label, x in speedups.items()}
    columns = (
        TableColumn("Faster from", {label: _make_crossover_cell(x) for label, x in crossovers.items()}),
        TableColumn(f"Speedup at {units.short_length(longest)}", cells),
    )
    caption = (
        f"Length from which each mechanism is faster than {plot_rows.baseline}, interpolated between measured lengths"
    )
    panel = _draw_crossovers(plot_rows, crossovers, line_styles)
    return add_errors(PaperFigure(panel, columns, caption, symbols=(CROSSOVER_SYMBOLS,)), plot_rows)


def _draw_crossovers(plot_rows: PlotRows, crossovers: Mapping[str, Crossover], line_styles: LineStyles) -> Panel:
    """Draw crossovers sorted by length, shortest at the top; those without one are drawn at the longest length."""
    lengths = sorted({n for decision in plot_rows.decisions for n in decision.speedups})
    lines = [_make_crossover_line(label, x, lengths[0], line_styles[label]) for label, x in crossovers.items()]
    kinds: tuple[CrossoverKind, ...] = get_args(CrossoverKind)
    lines.sort(key=lambda line: (-kinds.index(crossovers[line.label].kind), -line.x[0], line.label))
    return make_dot_plot(
        [replace(line, y=[float(y)]) for y, line in enumerate(lines)],
        "count",
        title=f"Faster from: {plot_rows.format_mode()}",
        xlabel="context length" if plot_rows.config["mode"] == "decode" else "sequence length",
        ticks={float(n): units.short_length(n) for n in lengths},
    )


def _make_crossover_line(label: str, crossover: Crossover, shortest: int, line_style: LineStyle) -> Line:
    """The interpolated length with its interval; a triangle at the first or last length without a crossing between."""
    first_faster, line_style = crossover.first_faster, line_style._replace(hollow=crossover.kind != "from")
    if crossover.kind == "from" and first_faster is not None:
        high = crossover.high or float(first_faster)
        length = Estimate(crossover.estimate or high, crossover.low or float(shortest), high)
    elif first_faster is not None:
        length, line_style = Estimate(float(first_faster)), line_style._replace(marker="<")
    else:
        length, line_style = Estimate(float(crossover.longest)), line_style._replace(marker=">")
    return make_point(label, line_style, length, Estimate(0.0), format_crossover(crossover))


def _make_crossover_cell(crossover: Crossover) -> TableCell:
    """The interpolated length with its interval, or the measured lengths between which it lies."""
    if crossover.kind != "from" or crossover.estimate is None or crossover.low is None or crossover.high is None:
        return TableCell(format_crossover(crossover))
    return TableCell(f"{crossover.estimate:.0f}", f"{crossover.low:.0f}{units.INTERVAL_DASH}{crossover.high:.0f}")
