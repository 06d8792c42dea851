"""Plots of trained tasks: scores over steps, against cost, by length, and by distance of the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ... import units
from ...results.section import PlotKind
from ...results.stats import Estimate
from ...units import Unit
from .. import formatting
from ..drawing import length_plots
from ..drawing.figures import Line, Panel
from ..drawing.panel_data import make_point
from .trained_scores import LearningTest, MechanismResult

LENGTH_PREFIX, DISTANCE_PREFIX = "train.at_", "train.near_"  # of columns that end in a number
STEP_TICKS = 4  # intervals between ticks of the steps
AXIS_PADDING = 0.03  # of the span of an axis


class _ScorePlot(NamedTuple):
    """A plot of some mechanisms' results in a test."""

    test: LearningTest
    results: Sequence[MechanismResult]
    name: str
    title: str
    context: length_plots.PlotContext


@dataclass(frozen=True)
class _AxesSpec:
    """Axes and texts of a plot. description: text of the caption after the title."""

    kind: str
    description: str
    xlabel: str
    ylabel: str
    ticks: dict[float, str]
    unit: Unit
    log_x: bool = True
    mark_type: PlotKind = "line"


@dataclass(frozen=True)
class _ScoreCost:
    """A cost against which scores are plotted. min_distinct: distinct values needed for a plot."""

    column: str
    kind: str
    title: str
    description: str
    xlabel: str
    format_value: Callable[[float], str]
    min_distinct: int = 1


SCORE_COSTS = (
    _ScoreCost(
        "train.step_ms",
        "worth",
        "Score by training time",
        "the mean time of a step, measured during training and not interleaved",
        "time of a training step",
        units.duration,
    ),
    _ScoreCost(
        "state_bytes",
        "state",
        "Score by decode state",
        "the decode state in bytes of one sequence of the training length",
        "state of all layers",
        units.size,
        min_distinct=2,
    ),
)


def list_column_numbers(test: LearningTest, prefix: str) -> list[int]:
    """Sorted numbers at the ends of a test's columns with this prefix."""
    names = [
        str(name) for result in test.scored_results[:1] for name in result.rows.columns if str(name).startswith(prefix)
    ]
    ends = (name.removeprefix(prefix) for name in names if test.list_values(name))
    return sorted(int(end) for end in ends if end.isdecimal())


def plan_curves(test: LearningTest, context: length_plots.PlotContext) -> Iterator[length_plots.PlotPlan]:
    """Plan the plots of a test, the most informative first; several of a kind if there are too many lines."""
    scored = test.scored_results
    kinds: list[tuple[str, str, int, Callable[[_ScorePlot], Panel], Sequence[MechanismResult]]] = []
    with_curve = [result for result in scored if result.get_first_samples("curve")]
    kinds.append(("learning", "Learning", 0, _make_curves_panel, with_curve))
    for cost in SCORE_COSTS:
        values = {result.label: result.compute_mean(cost.column) for result in scored}
        measured = [result for result in scored if values[result.label]]
        enough = len({values[result.label] for result in measured}) >= cost.min_distinct
        kinds.append((cost.kind, cost.title, 1, partial(_make_cost_panel, cost), measured if enough else ()))
    by_length = bool(list_column_numbers(test, LENGTH_PREFIX))
    kinds.append(("lengths", "By length", 2, _make_lengths_panel, scored if by_length else ()))
    by_distance = len(list_column_numbers(test, DISTANCE_PREFIX)) > 1
    kinds.append(("distances", "By distance", 2, _make_distances_panel, scored if by_distance else ()))
    for kind, kind_title, draw_order, make, results in kinds:
        for batch_text, batch in formatting.split_batches(results, length_plots.MOST_LINES):
            name = formatting.make_slug(kind, test.name, batch_text, context.suffix)
            title = ", ".join(filter(None, (f"{kind_title}: {test.name}", batch_text)))
            plot = _ScorePlot(test, batch, name, title, context)
            yield length_plots.PlotPlan(name, kind, title, len(batch), partial(make, plot), draw_order)


# -- over steps ----------------------------------------------------------------------------------------------------


def _make_curves_panel(plot: _ScorePlot) -> Panel:
    results, lines = plot.results, []
    rates = [f"{result.best_attempts['train.learning_rate'].iloc[0]:g}" for result in results]
    same_rate = len(set(rates)) == 1
    for result, rate in zip(results, rates, strict=True):
        x, y = zip(*result.get_first_samples("curve"), strict=True)
        note = "" if same_rate else f"rate {rate}"
        lines.append(Line(result.label, plot.context.line_styles[result.label], x, y, note=note))
    last_steps = {max(line.x) for line in lines}
    seeds = sorted({int(result.best_attempts["seed"].iloc[0]) for result in results})
    best = f"which is {rates[0]} for all" if same_rate else "which is given after its name"
    description = f"one run each, with seed {formatting.join_words(map(str, seeds))} at its best learning rate, {best}"
    description += "; a line that ends early was solved, or had fewer steps" if len(last_steps) > 1 else ""
    steps = (max(last_steps) * i / STEP_TICKS for i in range(STEP_TICKS + 1))
    ticks = {step: units.integer(round(step)) for step in steps}
    ylabel = f"{plot.test.metric} on validation"
    axes = _AxesSpec("learning", description, "steps of training", ylabel, ticks, plot.test.unit, log_x=False)
    return _make_panel(plot, lines, axes)


# -- against costs -------------------------------------------------------------------------------------------------


def _make_cost_panel(cost: _ScoreCost, plot: _ScorePlot) -> Panel:
    lines = []
    for result in plot.results:
        cost_estimate = result.compute_mean(cost.column) or Estimate(math.nan)
        if cost_estimate.low is not None and cost_estimate.low <= 0:  # cannot be drawn on a logarithmic axis
            cost_estimate = Estimate(cost_estimate.value)
        score = result.score or Estimate(math.nan)
        lines.append(make_point(result.label, plot.context.line_styles[result.label], cost_estimate, score))
    description = f"the score against {cost.description}"
    description += "; bars: 95% intervals over seeds" if any(line.low for line in lines) else ""
    ends = [end for line in lines for side in (line.x, line.left, line.right) if side for end in side]
    marks = sorted({line.x[0] for line in lines} | {min(ends), max(ends)})
    ticks = {mark: cost.format_value(mark) for mark in marks}
    metric, unit = plot.test.metric, plot.test.unit
    return _make_panel(
        plot, lines, _AxesSpec(cost.kind, description, cost.xlabel, metric, ticks, unit, mark_type="points")
    )


# -- by length and distance ----------------------------------------------------------------------------------------


def _make_lengths_panel(plot: _ScorePlot) -> Panel:
    test = plot.test
    columns = {n: f"{LENGTH_PREFIX}{n}" for n in list_column_numbers(test, LENGTH_PREFIX)}
    description = f"trained at length {test.length} and tested at each; mean over seeds"
    axes = _AxesSpec("lengths", description, "length of the tests", test.metric, {}, test.unit)
    return _make_columns_panel(plot, columns | {test.length: "train.score"}, axes)


def _make_distances_panel(plot: _ScorePlot) -> Panel:
    columns = {n: f"{DISTANCE_PREFIX}{n}" for n in list_column_numbers(plot.test, DISTANCE_PREFIX)}
    description = (
        "accuracy by distance of the answer: at most so many positions, and more than half as many; mean over seeds"
    )
    axes = _AxesSpec("distances", description, "positions back, at most", "right answers", {}, "share")
    return _make_columns_panel(plot, columns, axes)


def _make_columns_panel(plot: _ScorePlot, columns: dict[int, str], axes: _AxesSpec) -> Panel:
    """One line per mechanism through the means of columns, at the number of each."""
    lines = []
    most = 1.0 if axes.unit == "share" else None
    for result in plot.results:
        means = {n: mean for n in sorted(columns) if (mean := result.compute_mean(columns[n], most))}
        if not means:
            continue
        x, y = [float(n) for n in means], [mean.value for mean in means.values()]
        line = Line(result.label, plot.context.line_styles[result.label], x, y)
        ends = [(m.low, m.high) for m in means.values() if m.low is not None and m.high is not None]
        if len(ends) == len(means):
            low, high = zip(*ends, strict=True)
            line = replace(line, low=low, high=high)
        lines.append(line)
    if any(line.low for line in lines):
        axes = replace(axes, description=f"{axes.description}; bands: 95% intervals over seeds")
    ticks = {float(n): units.short_length(n) for n in sorted(columns)}
    return _make_panel(plot, lines, replace(axes, ticks=ticks))


def _make_panel(plot: _ScorePlot, lines: Sequence[Line], axes: _AxesSpec) -> Panel:
    chance = None if plot.test.in_bits else next(iter(plot.test.list_values("train.chance")), None)
    span = max(axes.ticks) - min(axes.ticks)
    return Panel(
        name=plot.name,
        kind=axes.kind,
        title=plot.title[:60],
        config_text=plot.context.config_text,
        caption=f"{plot.title}: {axes.description}." + ("" if chance is None else " The black line is chance."),
        xlabel=axes.xlabel,
        ylabel=axes.ylabel,
        unit=axes.unit,
        lines=tuple(lines),
        ticks=axes.ticks,
        log_x=axes.log_x,
        margin=AXIS_PADDING * span,
        log_y=False,
        mark_type=axes.mark_type,
        level=chance,
        bounds=_compute_share_limits(lines, chance) if axes.unit == "share" else None,
        alt=f"{plot.title}, for {formatting.join_words(line.label for line in lines)}.",
    )


def _compute_share_limits(lines: Sequence[Line], chance: float | None) -> tuple[float, float]:
    """y limits from zero to the largest value."""
    values = [v for line in lines for part in (line.y, line.high) if part for v in part]
    top = max([*values, chance or 0.0], default=1.0) or 1.0
    return -AXIS_PADDING * top, (1 + 2 * AXIS_PADDING) * top
