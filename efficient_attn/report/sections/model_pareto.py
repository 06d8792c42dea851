"""Quality of a trained model against time, state and memory, with Pareto fronts; and heatmaps by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ... import units
from ...results.stats import Estimate
from ..drawing.figures import MAX_TITLE_LETTERS, Panel, PlotContext, PlotPlan
from ..drawing.heatmap import Heatmap, HeatmapGrid
from ..drawing.panel_data import make_point
from ..formatting import join_words, make_slug
from ..gather import Frame

EXACT_DIVERGENCE = 1e-6  # nats; smaller divergences count as rounding
SHADE_DECADES = 5  # decades that a heatmap's shades cover; smaller values are white


class SwapCost(NamedTuple):
    """A cost axis. column: of the summary over segments."""

    name: str
    title: str
    label: str
    description: str
    column: str
    higher_is_better: bool = False

    def find_estimate(self, line: Mapping[str, Any]) -> Estimate | None:
        """The cost in a summary over segments; None if unknown or zero."""
        value = line[self.column]
        if isinstance(value, Estimate):
            return value
        return Estimate(float(value)) if value else None

    def format_value(self, value: float) -> str:
        """A ratio if higher is better, else a number of bytes."""
        return units.ratio(value) if self.higher_is_better else units.size(value)


TIME_LABEL, TIME_DESCRIPTION = "time of the unmodified model over time swapped", "the speedup of a whole pass"
MEMORY_LABEL = "peak memory of a pass, weights not counted"
SWAP_COSTS = (
    SwapCost("", "time", TIME_LABEL, TIME_DESCRIPTION, "speedup", higher_is_better=True),
    SwapCost("state", "state", "decode states of all layers", "the decode states of all layers", "state_bytes"),
    SwapCost("memory", "memory", MEMORY_LABEL, "the peak memory of a pass", "peak_memory_bytes"),
)


def plan_pareto_plots(
    lines: Sequence[Mapping[str, Any]], name: str, setting_text: str, context: PlotContext
) -> Iterator[PlotPlan]:
    """Plan a plot of divergence against each cost that several lines have."""
    for cost in SWAP_COSTS:
        pairs = ((line, cost.find_estimate(line)) for line in lines if line["divergence"] is not None)
        drawn = [(line, estimate) for line, estimate in pairs if estimate is not None]
        if len(drawn) > 1 and any(line["divergence"].value > EXACT_DIVERGENCE for line, _ in drawn):
            make = partial(_make_pareto_panel, drawn, cost, setting_text, context)
            yield context.plan(make_slug(name, cost.name), "swap", setting_text, len(drawn), make)


def _make_pareto_panel(
    estimates: Sequence[tuple[Mapping[str, Any], Estimate]], cost: SwapCost, setting_text: str, context: PlotContext
) -> Panel:
    """A point per variant with both intervals, and the Pareto front."""
    drawn = [(line, estimate) for line, estimate in estimates if line["divergence"].value > EXACT_DIVERGENCE]
    exact = [(line, estimate) for line, estimate in estimates if line["divergence"].value <= EXACT_DIVERGENCE]
    exact_names = join_words(f"{line['label']} ({cost.format_value(estimate.value)})" for line, estimate in exact)
    points = tuple(
        make_point(line["label"], context.line_styles[line["label"]], estimate, line["divergence"])
        for line, estimate in drawn
    )
    marks = sorted({estimate.value for _, estimate in drawn})
    interval_reach = max(abs(end - estimate.value) for _, estimate in drawn for end in estimate if end)
    values = [(estimate.value, line["divergence"].value) for line, estimate in drawn]
    decoder = any(line["swap.divergence"] is not None for line, _ in estimates)
    return Panel(
        title=f"Quality against {cost.title}: {setting_text}"[:MAX_TITLE_LETTERS],
        caption=f"Quality against {cost.description}, over {setting_text}; bars: 95% intervals over segments. The line "
        "is the Pareto front." + (f" Exact up to rounding, so not drawn: {exact_names}." if exact else ""),
        xlabel=cost.label,
        ylabel="KL from the unmodified model, nats" if decoder else "error of hidden states",
        unit="error",
        lines=points,
        ticks={mark: cost.format_value(mark) for mark in marks},
        log_x=not cost.higher_is_better,
        margin=max(0.05, interval_reach),
        mark_type="points",
        pareto_front=tuple(find_pareto_points(values, higher_is_better=cost.higher_is_better)),
        alt=f"Quality against {cost.title} over {setting_text} for {join_words(line.label for line in points)}.",
    )


def find_pareto_points(points: Sequence[tuple[float, float]], *, higher_is_better: bool) -> list[tuple[float, float]]:
    """Pareto-optimal points (cost, divergence), best cost first."""
    best: list[tuple[float, float]] = []
    for cost, error in sorted(points, key=lambda p: (-p[0] if higher_is_better else p[0], p[1])):
        if not best or error < best[-1][1]:
            best.append((cost, error))
    return best


# -- layers --------------------------------------------------------------------------------------------------------


def make_layer_heatmap(means: Frame, measure: str, setting_text: str) -> Heatmap:
    """Heatmap of divergence with a single layer swapped. means (layers, variants)."""
    worst = float(means.max().max())

    def make_grid(label: str) -> HeatmapGrid:
        values = [float(x) if units.is_present(x) else None for x in means[label].tolist()]
        shares = [None if x is None else compute_shade(x, worst) for x in values]
        return HeatmapGrid(label, [[x] for x in shares], [[units.number(x)] for x in values])

    labels = [str(label) for label in means.columns]
    return Heatmap(
        title=f"One layer swapped: {setting_text}"[:MAX_TITLE_LETTERS],
        caption=f"{measure} with a single layer swapped, {setting_text}. Shades are logarithmic.",
        alt=f"{measure} by layer over {setting_text} for {join_words(labels)}.",
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
