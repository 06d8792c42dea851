"""Plots of trained tasks: scores over steps, against cost, by length, and by distance of the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ... import units
from ...results.section import PlotKind
from ...results.stats import Estimate
from .. import formatting
from ..drawing import length_plots
from ..drawing.figures import Line, Panel
from .trained_scores import LearningTest, MechanismResult

LENGTH_PREFIX, DISTANCE_PREFIX = "train.at_", "train.near_"  # of columns that end in a number
STEP_TICKS = 4  # intervals between ticks of the steps
AXIS_PADDING = 0.03  # of the span of an axis


@dataclass(frozen=True)
class _AxesSpec:
    """Axes and texts of a panel. description: text of the caption after the title."""

    kind: str
    title: str
    description: str
    xlabel: str
    ylabel: str
    ticks: dict[float, str]
    log_x: bool = False
    mark_type: PlotKind = "line"


@dataclass(frozen=True)
class _ScoreCost:
    """A cost against which scores are plotted. min_distinct: distinct values needed for a plot."""

    column: str
    kind: str
    title: str
    description: str
    xlabel: str
    write: Callable[[float], str]
    min_distinct: int = 1


SCORE_COSTS = (
    _ScoreCost(
        "train.step_ms",
        "worth",
        "Learned in what time",
        "the mean time of a step, measured during training and not interleaved",
        "time of a training step",
        units.duration,
    ),
    _ScoreCost(
        "state_bytes",
        "state",
        "Learned with what state",
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


def plan_curves(test: LearningTest, scene: length_plots.Scene) -> Iterator[length_plots.PlotPlan]:
    """Plan the plots of a test, the most informative first."""
    results = [result for result in test.scored_results if _get_curve(result)]
    if results:
        yield from _plan_groups(test, results, "learning", f"Learning: {test.name}", scene, 0, _make_curves_panel)
    for cost in SCORE_COSTS:
        measured = [result for result in test.scored_results if result.compute_mean(cost.column)]
        if len({result.compute_mean(cost.column) for result in measured}) >= cost.min_distinct:
            draw = partial(_make_cost_panel, cost)
            yield from _plan_groups(test, measured, cost.kind, f"{cost.title}: {test.name}", scene, 1, draw)
    if list_column_numbers(test, LENGTH_PREFIX):
        yield from _plan_groups(
            test, test.scored_results, "lengths", f"By length: {test.name}", scene, 2, _make_lengths_panel
        )
    if len(list_column_numbers(test, DISTANCE_PREFIX)) > 1:
        yield from _plan_groups(
            test, test.scored_results, "distances", f"By distance: {test.name}", scene, 2, _make_distances_panel
        )


def _plan_groups(
    test: LearningTest,
    results: Sequence[MechanismResult],
    kind: str,
    title: str,
    scene: length_plots.Scene,
    draw_order: int,
    draw: Any,
) -> Iterator[length_plots.PlotPlan]:
    """Plan the plot, or several if there are too many lines."""
    groups = [results[i : i + length_plots.MOST_LINES] for i in range(0, len(results), length_plots.MOST_LINES)]
    for number, group in enumerate(groups, 1):
        group_text = f"{number} of {len(groups)}" if len(groups) > 1 else ""
        name = formatting.make_slug(kind, test.name, group_text, scene.suffix)
        group_title = ", ".join(filter(None, (title, group_text)))
        yield length_plots.PlotPlan(
            name, kind, group_title, len(group), partial(draw, test, group, name, group_title, scene), draw_order
        )


# -- over steps ----------------------------------------------------------------------------------------------------


def _get_curve(result: MechanismResult) -> tuple[tuple[float, float], ...] | None:
    """Learning curve of the first seed at the best learning rate, if stored."""
    curve: Any = result.best_attempts["curve"].iloc[0] if "curve" in result.best_attempts else None
    return curve if isinstance(curve, tuple) else None


def _make_curves_panel(
    test: LearningTest, results: Sequence[MechanismResult], name: str, title: str, scene: length_plots.Scene
) -> Panel:
    lines = []
    rates = [f"{result.best_attempts['train.learning_rate'].iloc[0]:g}" for result in results]
    same_rate = len(set(rates)) == 1
    for result, rate in zip(results, rates, strict=True):
        x, y = zip(*(_get_curve(result) or ()), strict=True)
        lines.append(Line(result.label, scene.looks[result.label], x, y, note="" if same_rate else f"rate {rate}"))
    last = max(max(line.x) for line in lines)
    seeds = sorted({int(result.best_attempts["seed"].iloc[0]) for result in results})
    best = f"which is {rates[0]} for all" if same_rate else "which stands beside its name"
    description = f"one run each, with seed {formatting.join_words(map(str, seeds))} at its best learning rate, {best}"
    uneven = len({max(line.x) for line in lines}) > 1
    description += "; a line that ends early was solved, or had fewer steps" if uneven else ""
    ticks = {last * i / STEP_TICKS: units.integer(round(last * i / STEP_TICKS)) for i in range(STEP_TICKS + 1)}
    ylabel = f"{test.metric} on validation"
    return _make_panel(
        test, lines, _AxesSpec("learning", title, description, "steps of training", ylabel, ticks), name, scene
    )


# -- against costs -------------------------------------------------------------------------------------------------


def _make_cost_panel(
    cost: _ScoreCost,
    test: LearningTest,
    results: Sequence[MechanismResult],
    name: str,
    title: str,
    scene: length_plots.Scene,
) -> Panel:
    lines = []
    for result in results:
        cost_estimate, score = (
            result.compute_mean(cost.column) or Estimate(math.nan),
            result.score or Estimate(math.nan),
        )
        line = _add_interval(Line(result.label, scene.looks[result.label], [cost_estimate.value], [score.value]), score)
        if cost_estimate.low is not None and cost_estimate.high is not None and cost_estimate.low > 0:
            line = replace(line, left=[cost_estimate.low], right=[cost_estimate.high])
        lines.append(line)
    description = f"the score against {cost.description}"
    description += "; bars: 95% intervals over seeds" if any(line.low for line in lines) else ""
    ends = [end for line in lines for side in (line.x, line.left, line.right) if side for end in side]
    marks = sorted({line.x[0] for line in lines} | {min(ends), max(ends)})
    ticks = {mark: cost.write(mark) for mark in marks}
    axes = _AxesSpec(cost.kind, title, description, cost.xlabel, test.metric, ticks, log_x=True, mark_type="points")
    return _make_panel(test, lines, axes, name, scene)


def _add_interval(line: Line, estimate: Estimate) -> Line:
    if estimate.low is None or estimate.high is None:
        return line
    return replace(line, low=[*(line.low or ()), estimate.low], high=[*(line.high or ()), estimate.high])


# -- by length and distance ----------------------------------------------------------------------------------------


def _make_lengths_panel(
    test: LearningTest, results: Sequence[MechanismResult], name: str, title: str, scene: length_plots.Scene
) -> Panel:
    columns = {n: f"{LENGTH_PREFIX}{n}" for n in list_column_numbers(test, LENGTH_PREFIX)} | {
        test.length: "train.score"
    }
    description = f"trained at length {test.length} and tested at each; mean over seeds"
    axes = _AxesSpec("lengths", title, description, "length of the tests", test.metric, {}, log_x=True)
    return _make_columns_panel(test, results, columns, axes, name, scene)


def _make_distances_panel(
    test: LearningTest, results: Sequence[MechanismResult], name: str, title: str, scene: length_plots.Scene
) -> Panel:
    columns = {n: f"{DISTANCE_PREFIX}{n}" for n in list_column_numbers(test, DISTANCE_PREFIX)}
    description = (
        "accuracy by distance of the answer: at most so many positions, and more than half as many; mean over seeds"
    )
    axes = _AxesSpec("distances", title, description, "positions back, at most", "right answers", {}, log_x=True)
    return _make_columns_panel(test, results, columns, axes, name, scene)


def _make_columns_panel(
    test: LearningTest,
    results: Sequence[MechanismResult],
    columns: dict[int, str],
    axes: _AxesSpec,
    name: str,
    scene: length_plots.Scene,
) -> Panel:
    """One line per mechanism through the means of columns, at the number of each."""
    lines = []
    for result in results:
        most = None if test.in_bits and axes.kind != "distances" else 1.0
        means = {n: mean for n in sorted(columns) if (mean := result.compute_mean(columns[n], most))}
        if not means:
            continue
        line = Line(
            result.label, scene.looks[result.label], [float(n) for n in means], [m.value for m in means.values()]
        )
        for mean in means.values():
            line = _add_interval(line, mean)
        lines.append(line if line.low and len(line.low) == len(means) else replace(line, low=None, high=None))
    if any(line.low for line in lines):
        axes = replace(axes, description=f"{axes.description}; bands: 95% intervals over seeds")
    ticks = {float(n): units.short_length(n) for n in sorted(columns)}
    return _make_panel(test, lines, replace(axes, ticks=ticks), name, scene)


def _make_panel(
    test: LearningTest, lines: Sequence[Line], axes: _AxesSpec, name: str, scene: length_plots.Scene
) -> Panel:
    chance = None if test.in_bits else next(iter(test.list_values("train.chance")), None)
    span = max(axes.ticks) - min(axes.ticks)
    return Panel(
        name=name,
        kind=axes.kind,
        title=axes.title[:60],
        config_text=scene.config_text,
        caption=f"{axes.title}: {axes.description}." + ("" if chance is None else " The black line is chance."),
        xlabel=axes.xlabel,
        ylabel=axes.ylabel,
        unit="number" if test.in_bits and axes.kind != "distances" else "share",
        lines=tuple(lines),
        ticks=axes.ticks,
        log_x=axes.log_x,
        margin=AXIS_PADDING * span,
        log_y=False,
        mark_type=axes.mark_type,
        level=chance,
        bounds=None if test.in_bits and axes.kind != "distances" else _compute_share_limits(lines, chance),
        alt=f"{axes.title}, for {formatting.join_words(line.label for line in lines)}.",
    )


def _compute_share_limits(lines: Sequence[Line], chance: float | None) -> tuple[float, float]:
    """y limits from zero to the largest value."""
    values = [v for line in lines for part in (line.y, line.high) if part for v in part]
    top = max([*values, chance or 0.0], default=1.0) or 1.0
    return -AXIS_PADDING * top, (1 + 2 * AXIS_PADDING) * top
