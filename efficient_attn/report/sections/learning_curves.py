"""Plots of trained tasks: scores over steps, against cost, by length, and by distance of the answer; and alignments,
the attention weights of source tokens for each target token."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ... import units
from ...results.stats import Estimate
from ...units import Unit
from .. import formatting
from ..drawing.figures import MAX_TITLE_LETTERS, MOST_LINES, Line, Panel, PlotContext, PlotPlan
from ..drawing.heatmap import MAX_GRIDS, Heatmap, HeatmapGrid
from ..drawing.panel_data import Picture, make_point
from ..drawing.style import LineStyles
from .trained_scores import LearningTest, MechanismResult

STEP_TICKS = 4  # intervals between ticks of the steps
AXIS_PADDING = 0.03  # of the span of an axis
TICK_INTERVAL = 4  # positions per tick label of an alignment


class _ScoreCost(NamedTuple):
    """A cost against which scores are plotted. min_distinct: distinct values needed for a plot."""

    column: str
    kind: str
    title: str
    description: str
    xlabel: str
    format_value: Callable[[float], str]
    min_distinct: int = 1


STEP_DESCRIPTION = "the mean time of a step, measured during training and not interleaved"
STATE_DESCRIPTION = "the decode state in bytes of one sequence of the training length"
STEP_LABEL, STATE_LABEL = "time of a training step", "state of all layers"
SCORE_COSTS = (
    _ScoreCost("train.step_ms", "worth", "Score by training time", STEP_DESCRIPTION, STEP_LABEL, units.duration),
    _ScoreCost("state_bytes", "state", "Score by decode state", STATE_DESCRIPTION, STATE_LABEL, units.size, 2),
)


def _find_columns(test: LearningTest, prefix: str) -> dict[int, str]:
    """A test's columns with values whose names are this prefix and a number, sorted by the number."""
    names = test.scored_results[0].rows.columns if test.scored_results else ()
    numbers = {int(name.removeprefix(prefix)): name for name in names if re.fullmatch(rf"{re.escape(prefix)}\d+", name)}
    return {number: numbers[number] for number in sorted(numbers) if test.list_values(numbers[number])}


def list_length_columns(test: LearningTest) -> dict[int, str]:
    """The columns of scores by the length of the tests; empty if there is none but that of training."""
    columns = _find_columns(test, "train.at_")
    return columns | {test.length: "train.score"} if columns else {}


def list_distance_columns(test: LearningTest) -> dict[int, str]:
    """The columns of accuracies by the distance of the answer; empty for a single one."""
    columns = _find_columns(test, "train.near_")
    return columns if len(columns) > 1 else {}


def plan_curves(test: LearningTest, context: PlotContext) -> Iterator[PlotPlan]:
    """Plan the plots of a test, the most informative first; several of a kind if there are too many lines."""
    scored = test.scored_results
    kinds: list[tuple[str, str, int, Callable[[_ScorePlot], Picture], Sequence[MechanismResult]]] = []
    with_curve = [result for result in scored if result.get_first_samples("curve")]
    kinds.append(("learning", "Learning", 0, _make_curves_panel, with_curve))
    for cost in SCORE_COSTS:
        values = {result.label: result.compute_mean(cost.column) for result in scored}
        measured = [result for result in scored if values[result.label]]
        enough = len({values[result.label] for result in measured}) >= cost.min_distinct
        kinds.append((cost.kind, cost.title, 1, partial(_make_cost_panel, cost), measured if enough else ()))
    kinds.append(("lengths", "By length", 2, _make_lengths_panel, scored if list_length_columns(test) else ()))
    kinds.append(("distances", "By distance", 2, _make_distances_panel, scored if list_distance_columns(test) else ()))
    with_alignment = [result for result in scored if result.get_first_samples("alignment")]
    kinds.append(("alignment", "Alignment", 2, _make_alignment_heatmap, with_alignment))
    for kind, kind_title, draw_order, make, results in kinds:
        most = MAX_GRIDS if kind == "alignment" else MOST_LINES
        for batch_text, batch in formatting.split_batches(results, most):
            name = formatting.make_slug(kind, test.name, batch_text, context.suffix)
            title = ", ".join(filter(None, (f"{kind_title}: {test.name}", batch_text)))
            plot = _ScorePlot(test, batch, title, context.line_styles)
            yield context.plan(name, kind, title, len(batch), partial(make, plot), draw_order=draw_order)


@dataclass(frozen=True)
class _ScorePlot:
    """A plot of some mechanisms' results in a test."""

    test: LearningTest
    results: Sequence[MechanismResult]
    title: str
    line_styles: LineStyles

    def make_panel(self, lines: Sequence[Line], description: str, ticks: dict[float, str], **axes: Any) -> Panel:
        """A panel with the level of chance. description: text of the caption after the title. axes: other fields."""
        chance = None if self.test.in_bits else self.test.computed_scores.get("chance")
        options: dict[str, Any] = {"unit": self.test.unit} | axes
        return Panel(
            title=self.title[:MAX_TITLE_LETTERS],
            caption=f"{self.title}: {description}." + ("" if chance is None else " The black line is chance."),
            lines=tuple(lines),
            ticks=ticks,
            margin=AXIS_PADDING * (max(ticks) - min(ticks)),
            log_y=False,
            level=chance,
            bounds=_compute_share_limits(lines, chance) if options["unit"] == "share" else None,
            alt=f"{self.title}, for {formatting.join_words(line.label for line in lines)}.",
            **options,
        )


def _compute_share_limits(lines: Sequence[Line], chance: float | None) -> tuple[float, float]:
    """y limits from zero to the largest value."""
    values = [v for line in lines for part in (line.y, line.high) if part for v in part]
    top = max([*values, chance or 0.0], default=1.0) or 1.0
    return -AXIS_PADDING * top, (1 + 2 * AXIS_PADDING) * top


def _make_curves_panel(plot: _ScorePlot) -> Panel:
    """Validation scores over steps."""
    results, lines = plot.results, []
    rates = [f"{result.best_attempts['train.learning_rate'].iloc[0]:g}" for result in results]
    same_rate = len(set(rates)) == 1
    for result, rate in zip(results, rates, strict=True):
        x, y = zip(*result.get_first_samples("curve"), strict=True)
        lines.append(Line(result.label, plot.line_styles[result.label], x, y, note="" if same_rate else f"rate {rate}"))
    last_steps = {max(line.x) for line in lines}
    seeds = sorted({int(result.best_attempts["seed"].iloc[0]) for result in results})
    best = f"which is {rates[0]} for all" if same_rate else "which is given after its name"
    description = f"one run each, with seed {formatting.join_words(map(str, seeds))} at its best learning rate, {best}"
    description += "; a line that ends early was solved, or had fewer steps" if len(last_steps) > 1 else ""
    steps = (max(last_steps) * i / STEP_TICKS for i in range(STEP_TICKS + 1))
    ticks = {step: units.integer(round(step)) for step in steps}
    ylabel = f"{plot.test.metric} on validation"
    return plot.make_panel(lines, description, ticks, xlabel="steps of training", ylabel=ylabel, log_x=False)


def _make_cost_panel(cost: _ScoreCost, plot: _ScorePlot) -> Panel:
    """Scores against a cost."""
    lines = []
    for result in plot.results:
        cost_estimate = result.compute_mean(cost.column) or Estimate(math.nan)
        if cost_estimate.low is not None and cost_estimate.low <= 0:  # cannot be drawn on a logarithmic axis
            cost_estimate = Estimate(cost_estimate.value)
        score = result.score or Estimate(math.nan)
        lines.append(make_point(result.label, plot.line_styles[result.label], cost_estimate, score))
    description = f"the score against {cost.description}"
    description += "; bars: 95% intervals over seeds" if any(line.low for line in lines) else ""
    ends = [end for line in lines for end in line.list_x()]
    marks = sorted({line.x[0] for line in lines} | {min(ends), max(ends)})
    ticks = {mark: cost.format_value(mark) for mark in marks}
    labels = {"xlabel": cost.xlabel, "ylabel": plot.test.metric}
    return plot.make_panel(lines, description, ticks, mark_type="points", **labels)


def _make_lengths_panel(plot: _ScorePlot) -> Panel:
    """Scores by the length of the tests."""
    test, columns = plot.test, list_length_columns(plot.test)
    description = f"trained at length {test.length} and tested at each; mean over seeds"
    return _make_columns_panel(plot, columns, description, "length of the tests", test.metric, test.unit)


def _make_distances_panel(plot: _ScorePlot) -> Panel:
    """Accuracies by the distance of the answer."""
    description = (
        "accuracy by distance of the answer: at most so many positions, and more than half as many; mean over seeds"
    )
    columns, xlabel = list_distance_columns(plot.test), "positions back, at most"
    return _make_columns_panel(plot, columns, description, xlabel, "right answers", "share")


def _make_columns_panel(
    plot: _ScorePlot, columns: dict[int, str], description: str, xlabel: str, ylabel: str, unit: Unit
) -> Panel:
    """One line per mechanism through the means of columns, at the number of each."""
    lines = []
    most = 1.0 if unit == "share" else None
    for result in plot.results:
        means = {n: mean for n in sorted(columns) if (mean := result.compute_mean(columns[n], most))}
        if not means:
            continue
        x, y = [float(n) for n in means], [mean.value for mean in means.values()]
        line = Line(result.label, plot.line_styles[result.label], x, y)
        ends = [(m.low, m.high) for m in means.values() if m.low is not None and m.high is not None]
        if len(ends) == len(means):
            low, high = zip(*ends, strict=True)
            line = replace(line, low=low, high=high)
        lines.append(line)
    description += "; bands: 95% intervals over seeds" if any(line.low for line in lines) else ""
    ticks = {float(n): units.short_length(n) for n in sorted(columns)}
    return plot.make_panel(lines, description, ticks, xlabel=xlabel, ylabel=ylabel, unit=unit)


# -- alignments -----------------------------------------------------------------------------------------------------


def _make_alignment_heatmap(plot: _ScorePlot) -> Heatmap:
    grids = []
    for result in plot.results:
        shares = result.get_first_samples("alignment")
        grids.append(HeatmapGrid(result.label, shares, [[""] * len(row) for row in shares]))  # too many for numbers
    row_count = max(len(grid.shares) for grid in grids)
    column_count = max(len(grid.shares[0]) for grid in grids)
    return Heatmap(
        title=plot.title[:MAX_TITLE_LETTERS],
        caption=f"{plot.title}: one test example. Rows are target tokens, columns are source tokens, shades are "
        "attention weights, averaged over the heads of the last layer; one model per mechanism, with the first seed at "
        "its best learning rate.",
        alt=f"{plot.title}, for {formatting.join_words(grid.label for grid in grids)}.",
        grids=tuple(grids),
        column_labels=_make_tick_labels(column_count),
        row_labels=_make_tick_labels(row_count),
        xlabel="source",
        ylabel="written",
    )


def _make_tick_labels(count: int) -> tuple[str, ...]:
    return tuple("" if n % TICK_INTERVAL else str(n) for n in range(1, count + 1))
