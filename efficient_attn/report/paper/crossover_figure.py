"""Crossover figure: the length from which each mechanism is faster, one row per mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ... import units
from ..answers.crossovers import Crossover, format_crossover
from ..drawing.panel_data import Line, Panel, make_dot_plot
from ..drawing.style import LineStyle, LineStyles
from .selection import PlotRows
from .table_columns import (
    PaperFigure,
    TableCell,
    TableColumn,
    describe_errors,
    list_decisions,
    list_errors,
    make_error_column,
    make_estimate_cell,
)

SYMBOLS = (
    "Bars: where the ends of the 95% interval of the speedup cross 1; open triangles: faster at all measured lengths "
    "(left), or at none (right)."
)


def _draw_crossovers(plot_rows: PlotRows, crossovers: Mapping[str, Crossover], line_styles: LineStyles) -> Panel:
    """Draw crossovers sorted by length, shortest at the top; those without one are drawn at the longest length."""
    lengths = sorted({n for decision in plot_rows.decisions for n in decision.speedups})
    ranked = sorted(crossovers, key=lambda label: (-_rank_crossover(crossovers[label], lengths), label))
    lines = [
        _make_line(label, crossovers[label], float(y), lengths, line_styles[label]) for y, label in enumerate(ranked)
    ]
    return make_dot_plot(
        lines,
        "count",
        title=f"Faster from: {plot_rows.format_mode()}",
        xlabel="context length" if plot_rows.config["mode"] == "decode" else "sequence length",
        ticks={float(n): units.short_length(n) for n in lengths},
    )


def _rank_crossover(crossover: Crossover, lengths: Sequence[int]) -> float:
    """Sort key: the crossover length; mechanisms that are never faster come last."""
    if crossover.kind == "always":
        return 0.0
    if crossover.first_faster is None:
        return 2.0 * lengths[-1] + (crossover.kind == "never")
    return crossover.estimate or crossover.high or float(crossover.first_faster)


def _make_line(label: str, crossover: Crossover, y: float, lengths: Sequence[int], line_style: LineStyle) -> Line:
    note, first_faster = format_crossover(crossover), crossover.first_faster
    if first_faster is None or crossover.kind == "always":
        length, marker = (crossover.longest, ">") if first_faster is None else (first_faster, "<")
        return Line(label, line_style._replace(marker=marker, hollow=True), [float(length)], [y], note=note)
    low, high = crossover.low or float(lengths[0]), crossover.high or float(first_faster)
    xs, line_style = [crossover.estimate or high], line_style._replace(hollow=False)
    return Line(label, line_style, xs, [y], left=[low], right=[high], note=note)


def rank_by_speedup(plot_rows: PlotRows) -> list[str]:
    """Labels with a crossover, fastest at the longest length first."""
    return [decision.label for decision in plot_rows.decisions if decision.crossover is not None]


def make_crossover_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """The lengths from which mechanisms are faster, and their speedups at the longest length."""
    decisions = [decision for decision in list_decisions(plot_rows, labels) if decision.crossover is not None]
    crossovers = {d.label: d.crossover for d in decisions if d.crossover is not None}
    longest = max(n for decision in decisions for n in decision.speedups)
    speedups = {d.label: make_estimate_cell(d.speedups.get(longest), units.ratio) for d in decisions}
    columns = (
        TableColumn("Faster from", {label: _make_crossover_cell(x) for label, x in crossovers.items()}),
        TableColumn(f"Speedup at {units.short_length(longest)}", speedups),
    )
    return PaperFigure(
        _draw_crossovers(plot_rows, crossovers, line_styles),
        columns,
        f"Length from which each mechanism is faster than {plot_rows.baseline}, interpolated between measured lengths",
        describe_errors(decisions),
        (SYMBOLS, *list_errors(decisions)),
        make_error_column(plot_rows, crossovers, decisions),
    )


def _make_crossover_cell(crossover: Crossover) -> TableCell:
    """The interpolated length with its interval, or the measured lengths between which it lies."""
    if crossover.kind != "from" or crossover.estimate is None or crossover.low is None or crossover.high is None:
        return TableCell(format_crossover(crossover))
    return TableCell(f"{crossover.estimate:.0f}", f"{crossover.low:.0f}{units.INTERVAL_DASH}{crossover.high:.0f}")
