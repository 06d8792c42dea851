"""Quality of a trained model against time, state and memory, with Pareto fronts; and heatmaps by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import formatting
from ..drawing import length_plots
from ..drawing.figures import Panel
from ..drawing.heatmap import Heatmap, HeatmapGrid
from ..drawing.panel_data import make_point
from ..gather import Frame

EXACT_DIVERGENCE = 1e-6  # nats; smaller divergences count as rounding
SHADE_DECADES = 5  # decades that a heatmap's shades cover; smaller values are white


class SwapCost(NamedTuple):
    """A cost axis. find_estimate: gets the cost from a summary over segments."""

    name: str
    title: str
    label: str
    description: str
    higher_is_better: bool
    find_estimate: Callable[[Mapping[str, Any]], Estimate | None]

    def format_value(self, value: float) -> str:
        """A ratio if higher is better, else a number of bytes."""
        return units.ratio(value) if self.higher_is_better else units.size(value)


def _make_column_finder(column: str) -> Callable[[Mapping[str, Any]], Estimate | None]:
    return lambda line: Estimate(float(line[column])) if line[column] else None


SWAP_COSTS = (
    SwapCost(
        "swap",
        "time",
        "time of the unmodified model over time swapped",
        "the speedup of a whole pass",
        True,
        lambda line: line["speedup"],
    ),
    SwapCost(
        "state",
        "state",
        "decode states of all layers",
        "the decode states of all layers",
        False,
        _make_column_finder("state_bytes"),
    ),
    SwapCost(
        "memory",
        "memory",
        "peak memory of a pass, weights not counted",
        "the peak memory of a pass",
        False,
        _make_column_finder("peak_memory_bytes"),
    ),
)


def plan_pareto_plots(
    lines: Sequence[Mapping[str, Any]], name: str, setting_text: str, context: length_plots.PlotContext
) -> Iterator[length_plots.PlotPlan]:
    """Plan a plot of divergence against each cost that several lines have."""
    for cost in SWAP_COSTS:
        drawn = [line for line in lines if line["divergence"] is not None and cost.find_estimate(line) is not None]
        if len(drawn) > 1 and any(line["divergence"].value > EXACT_DIVERGENCE for line in drawn):
            plot_name = name if cost.higher_is_better else f"{name}-{cost.name}"
            yield length_plots.PlotPlan(
                plot_name,
                "swap",
                setting_text,
                len(drawn),
                partial(_make_pareto_panel, drawn, cost, plot_name, setting_text, context),
            )


def _make_pareto_panel(
    lines: Sequence[Mapping[str, Any]], cost: SwapCost, name: str, setting_text: str, context: length_plots.PlotContext
) -> Panel:
    """A point per variant with both intervals, and the Pareto front."""
    drawn = [
        (line, cost.find_estimate(line) or Estimate(math.nan))
        for line in lines
        if line["divergence"].value > EXACT_DIVERGENCE
    ]
    exact = [line for line in lines if line["divergence"].value <= EXACT_DIVERGENCE]
    points = tuple(
        make_point(line["label"], context.line_styles[line["label"]], estimate, line["divergence"])
        for line, estimate in drawn
    )
    marks = sorted({estimate.value for _, estimate in drawn})
    interval_reach = max(abs(end - estimate.value) for _, estimate in drawn for end in estimate if end)
    values = [(estimate.value, line["divergence"].value) for line, estimate in drawn]
    exact_note = _describe_exact(exact, cost)
    decoder = any(line["swap.divergence"] is not None for line in lines)
    return Panel(
        name=name,
        kind="swap",
        title=f"Quality against {cost.title}: {setting_text}"[:60],
        config_text=context.config_text,
        caption=f"Quality against {cost.description}, over {setting_text}; bars: 95% intervals over segments. The line "
        f"is the Pareto front.{exact_note}",
        xlabel=cost.label,
        ylabel="KL from the unmodified model, nats" if decoder else "error of hidden states",
        unit="error",
        lines=points,
        ticks={mark: cost.format_value(mark) for mark in marks},
        log_x=not cost.higher_is_better,
        margin=max(0.05, interval_reach),
        mark_type="points",
        pareto_front=tuple(find_pareto_points(values, higher_is_better=cost.higher_is_better)),
        alt=f"Quality against {cost.title} over {setting_text} for "
        f"{formatting.join_words(line.label for line in points)}.",
    )


def _describe_exact(lines: Sequence[Mapping[str, Any]], cost: SwapCost) -> str:
    texts = [
        f"{line['label']} ({cost.format_value(estimate.value)})"
        for line in lines
        if (estimate := cost.find_estimate(line)) is not None
    ]
    return f" Exact up to rounding, so not drawn: {formatting.join_words(texts)}." if texts else ""


def find_pareto_points(points: Sequence[tuple[float, float]], *, higher_is_better: bool) -> list[tuple[float, float]]:
    """Pareto-optimal points (cost, divergence), best cost first."""
    best: list[tuple[float, float]] = []
    for cost, error in sorted(points, key=lambda p: (-p[0] if higher_is_better else p[0], p[1])):
        if not best or error < best[-1][1]:
            best.append((cost, error))
    return best


# -- layers --------------------------------------------------------------------------------------------------------


def plan_layer_heatmap(
    means: Frame, name: str, measure: str, setting_text: str, context: length_plots.PlotContext
) -> length_plots.PlotPlan:
    """Plan a heatmap of divergence with a single layer swapped. means (layers, variants)."""
    count = means.shape[1]
    return length_plots.PlotPlan(
        name, "layers", setting_text, count, partial(_make_layer_heatmap, means, name, measure, setting_text, context)
    )


def _make_layer_heatmap(
    means: Frame, name: str, measure: str, setting_text: str, context: length_plots.PlotContext
) -> Heatmap:
    worst = float(means.max().max())

    def make_grid(label: str) -> HeatmapGrid:
        values = [float(x) if units.is_present(x) else None for x in means[label].tolist()]
        shares = [None if x is None else compute_shade(x, worst) for x in values]
        return HeatmapGrid(label, [[x] for x in shares], [[units.number(x)] for x in values])

    labels = [str(label) for label in means.columns]
    return Heatmap(
        name=name,
        kind="layers",
        title=f"One layer swapped: {setting_text}"[:60],
        caption=f"{measure} with a single layer swapped, {setting_text}. Shades are logarithmic.",
        config_text=context.config_text,
        alt=f"{measure} by layer over {setting_text} for {formatting.join_words(labels)}.",
        grids=tuple(map(make_grid, labels)),
        column_labels=("",),
        row_labels=tuple(str(int(layer)) for layer in means.index),
        xlabel=measure,
        ylabel="layer",
    )


def compute_shade(value: float, worst: float) -> float:
    """Shade from 0 (``SHADE_DECADES`` below the worst value, or less) to 1 (the worst)."""
    if value <= 0 or worst <= 0:
        return 0.0
    return min(max(1 + math.log10(value / worst) / SHADE_DECADES, 0.0), 1.0)
