"""Crossover figure: the length from which each mechanism is faster, one row per mechanism."""

from __future__ import annotations

from collections.abc import Sequence

from ... import units
from .. import formatting
from ..answers.crossovers import Crossover, format_crossover
from ..answers.decision_table import Decision
from ..drawing.figures import Line, Panel, make_dot_plot
from ..drawing.style import LineStyle, LineStyles
from .selection import PlotRows

CAPTION = (
    "Length from which each mechanism is faster than {baseline}: where its speedup crosses 1, interpolated linearly in "
    "logarithms between measured lengths. Bars: where the ends of the 95% interval cross 1. Open triangle to the left: "
    "faster at all measured lengths; to the right: at none, or not significantly at the longest"
)


def draw_crossovers(plot_rows: PlotRows, decisions: Sequence[Decision], line_styles: LineStyles) -> Panel:
    """Draw crossovers sorted by length, shortest at the top; those without one are drawn at the longest length."""
    crossovers = {decision.label: decision.crossover for decision in decisions if decision.crossover is not None}
    lengths = sorted({n for decision in decisions for n in decision.speedups})
    ranked = sorted(crossovers, key=lambda label: (-_rank_crossover(crossovers[label], lengths), label))
    lines = [
        _make_line(label, crossovers[label], float(y), lengths, line_styles[label]) for y, label in enumerate(ranked)
    ]
    labels = formatting.join_words(crossovers)
    baseline = plot_rows.decision_table.baseline if plot_rows.decision_table else plot_rows.baseline
    mode, mode_text = plot_rows.config["mode"], plot_rows.format_mode()
    return make_dot_plot(
        lines,
        "count",
        title=f"Faster from: {mode_text}",
        caption=f"{CAPTION.format(baseline=baseline)} ({mode_text}).",
        alt=f"Shortest length from which {labels} are faster than {baseline}.",
        xlabel="context length" if mode == "decode" else "sequence length",
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
