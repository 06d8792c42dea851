"""Quality of a trained model against time, state and memory, with Pareto fronts; and heatmaps by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ... import units
from ...results.stats import Estimate
from ...units import Unit
from ..drawing.axes import compute_log_limits, make_y_ticks
from ..drawing.figures import PlotContext
from ..drawing.heatmap import Heatmap, HeatmapGrid
from ..drawing.panel_data import Panel, Picture, make_point
from ..drawing.style import LineStyles
from ..gather import Frame

EXACT_DIVERGENCE = 1e-6  # nats; smaller divergences count as rounding
MOST_PERPLEXITY = 10.0  # over the unmodified model's; greater ones are above the scale
ABOVE_SCALE, TOP = 13.0, 17.0  # where those are drawn, and the end of the axis
CUT_TEXT = f"above {MOST_PERPLEXITY:g}x, not to scale"
CUT_NOTE = f" Mechanisms above {MOST_PERPLEXITY:g}x are not to scale, and the line leaves them out."
SHADE_DECADES = 5  # decades that a heatmap's shades cover; smaller values are white
Summaries: TypeAlias = Sequence[Mapping[str, Any]]  # of mechanisms, over segments


class SwapCost(NamedTuple):
    """A cost axis. column: of the summary over segments. unit: of its values."""

    name: str
    title: str
    label: str
    description: str
    column: str
    unit: Unit

    def find_estimate(self, line: Mapping[str, Any]) -> Estimate | None:
        """The cost in a summary over segments; None if unknown or zero. A speedup becomes a relative time."""
        value = line[self.column]
        if isinstance(value, Estimate):
            low, high = (1 / end if end else None for end in (value.high, value.low))
            return Estimate(1 / value.value, low, high)
        return Estimate(float(value)) if value else None


TIME_LABEL, MEMORY_LABEL = "time of a pass over the unmodified model's", "peak memory of a pass, without weights"
STATES_LABEL = "decode states of all layers"
SWAP_COSTS = (
    SwapCost("", "time", TIME_LABEL, "time of a whole pass", "speedup", "ratio"),
    SwapCost("state", "state", STATES_LABEL, f"the {STATES_LABEL}", "state_bytes", "bytes"),
    SwapCost("memory", "memory", MEMORY_LABEL, "the peak memory of a pass", "peak_memory_bytes", "bytes"),
)


def make_pareto_plots(
    lines: Summaries, names: Sequence[object], setting_text: str, context: PlotContext
) -> Iterator[Picture]:
    """A plot of quality against each cost that several lines have."""
    for cost in SWAP_COSTS:
        panel = make_quality_panel(lines, cost, setting_text, context.line_styles)
        yield from context.name_parts(panel, "swap", *names, cost.name)


def make_quality_panel(
    lines: Summaries, cost: SwapCost, setting_text: str, line_styles: LineStyles, left_out: Summaries = ()
) -> Panel | None:
    """A point per variant with both intervals, and the Pareto front; None without two variants of which one is inexact.

    Quality is the ratio of perplexities if all variants have one, which includes 1, else the error of hidden states.
    Great ratios stand above the scale, so that the small ones can be compared. left_out: other measured variants; the
    front contains neither these nor points that they dominate.
    """
    pairs = ((line, cost.find_estimate(line)) for line in lines if line["divergence"] is not None)
    drawn = [(line, estimate) for line, estimate in pairs if estimate is not None]
    if len(drawn) < 2 or all(line["divergence"].value <= EXACT_DIVERGENCE for line, _ in drawn):
        return None
    has_perplexity = all(line["perplexity"] is not None for line, _ in drawn)
    column, quality = ("perplexity", "Perplexity") if has_perplexity else ("divergence", "Error")
    values = [line[column].value for line, _ in drawn]
    in_scale = [not has_perplexity or value <= MOST_PERPLEXITY for value in values]
    is_cut = not all(in_scale) and sum(in_scale) >= 2
    points = []
    for (line, estimate), value, fits in zip(drawn, values, in_scale, strict=True):
        note = units.ratio(value) if has_perplexity else ""
        quality_shown = line[column] if fits or not is_cut else Estimate(ABOVE_SCALE)
        points.append(make_point(line["label"], line_styles[line["label"]], estimate, quality_shown, note))
    exact_below = None if has_perplexity else EXACT_DIVERGENCE
    shown = [(point.x[0], point.y[0]) for point in points]
    costs = ((line[column], cost.find_estimate(line)) for line in left_out)
    others = [(estimate.value, value.value) for value, estimate in costs if estimate and value]
    front = find_pareto_points([at for at in (*shown, *others) if not is_cut or at[1] <= MOST_PERPLEXITY])
    front = [at for at in front if at in shown]
    inexact = [at for at in front if exact_below is None or at[1] >= exact_below]
    limits = compute_log_limits(x for point in points for x in point.list_x())
    lowest, _ = compute_log_limits(y for point in points for y in (*point.y, *(point.low or ())) if y <= TOP)
    cut: dict[str, Any] = {"bounds": (lowest, TOP), "level": MOST_PERPLEXITY, "level_text": CUT_TEXT} if is_cut else {}
    title = f"{quality} against {cost.title}: {setting_text}"
    return Panel(
        title=title,
        caption=f"{quality} against {cost.description}, over {setting_text}; bars: 95% intervals over segments. The "
        f"line is the Pareto front.{CUT_NOTE if is_cut else ''}",
        xlabel=cost.label,
        ylabel="perplexity over the unmodified model's" if has_perplexity else "error of hidden states",
        unit="ratio" if has_perplexity else "error",
        lines=tuple(points),
        ticks={**dict.fromkeys(limits, ""), **make_y_ticks(cost.unit, *limits)},
        mark_type="points",
        pareto_front=tuple(inexact),
        exact_below=exact_below,
        front_end=front[len(inexact)][0] if len(inexact) < len(front) else None,
        **cut,
    )


def find_pareto_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Pareto-optimal points (cost, error), lowest cost first."""
    best: list[tuple[float, float]] = []
    for cost, error in sorted(points):
        if not best or error < best[-1][1]:
            best.append((cost, error))
    return best


def make_layer_heatmap(means: Frame, measure: str, setting_text: str) -> Heatmap:
    """Heatmap of divergence with a single layer swapped. means (layers, variants)."""
    worst, grids = float(means.max().max()), []
    for label in means.columns:
        values = [float(x) if units.is_present(x) else None for x in means[label].tolist()]
        shares = [[None if x is None else compute_shade(x, worst)] for x in values]
        grids.append(HeatmapGrid(str(label), shares, [[units.number(x)] for x in values]))
    return Heatmap(
        title=f"One layer swapped: {setting_text}",
        caption=f"{measure} with a single layer swapped, {setting_text}. Shades are logarithmic.",
        grids=tuple(grids),
        column_labels=("",),
        row_labels=tuple(str(int(layer)) for layer in means.index),
        xlabel=measure,
        ylabel="layer",
    )


def compute_shade(value: float, worst: float) -> float:
    """Shade from 0 (``SHADE_DECADES`` below the worst value, or less) to 1 (the worst)."""
    return 0.0 if value <= 0 or worst <= 0 else min(max(1 + math.log10(value / worst) / SHADE_DECADES, 0.0), 1.0)
