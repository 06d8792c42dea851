"""Plots of trained tasks: scores over steps, against cost, by length, and by distance of the answer; and alignments,
the attention weights of source tokens for each target token."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ... import units
from ...results.stats import Estimate
from .. import formatting
from ..drawing.figures import PlotContext
from ..drawing.heatmap import Heatmap, HeatmapGrid
from ..drawing.panel_data import Line, Panel, Picture, make_line, make_point
from ..drawing.style import LineStyles
from .trained_scores import LearningTest

STEP_TICKS = 4  # intervals between ticks of the steps
AXIS_PADDING = 0.03  # of the span of an axis
TICK_INTERVAL = 4  # positions per tick label of an alignment


STEP_DESCRIPTION = "the mean time of a step, measured during training and not interleaved"
STATE_DESCRIPTION = "the decode state in bytes of one sequence of the training length"
LENGTH_DESCRIPTION = "trained at length {} and tested at each"
DISTANCE_DESCRIPTION = "accuracy by distance of the answer: at most so many positions, and more than half as many"


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


def make_score_plots(test: LearningTest, context: PlotContext) -> Iterator[Picture]:
    """The plots of a test, the most informative first."""
    styles = context.line_styles
    by_time = ("train.step_ms", STEP_DESCRIPTION, "time of a training step", units.duration)
    by_state = ("state_bytes", STATE_DESCRIPTION, "state of all layers", units.size)
    by_length: dict[str, Any] = {"xlabel": "length of the tests", "ylabel": test.metric, "unit": test.unit}
    by_length["description"] = LENGTH_DESCRIPTION.format(test.length)
    by_distance: dict[str, Any] = {"xlabel": "positions back, at most", "ylabel": "right answers", "unit": "share"}
    by_distance["description"] = DISTANCE_DESCRIPTION
    pictures: list[tuple[str, int, Picture | None]] = [
        ("learning", 0, _make_curves_panel(test, styles)),
        ("rates", 1, _make_rates_panel(test, styles)),
        ("worth", 1, _make_cost_panel(test, styles, "Score by training time", *by_time)),
        ("state", 1, _make_cost_panel(test, styles, "Score by decode state", *by_state)),
        ("lengths", 2, _make_columns_panel(test, styles, "By length", list_length_columns(test), **by_length)),
        ("distances", 2, _make_columns_panel(test, styles, "By distance", list_distance_columns(test), **by_distance)),
        ("alignment", 2, _make_alignment_heatmap(test)),
    ]
    for kind, rank, picture in pictures:
        yield from context.name_parts(picture, kind, kind, test.name, rank=rank)


def _make_panel(
    test: LearningTest, title: str, lines: Sequence[Line], description: str, ticks: dict[float, str], **axes: Any
) -> Panel | None:
    """A panel with the level of chance; None without lines. description: text of the caption after the title. axes:
    other fields."""
    if not lines:
        return None
    chance = None if test.in_bits else test.computed_scores.get("chance")
    options: dict[str, Any] = {"unit": test.unit} | axes
    return Panel(
        title=f"{title}: {test.name}",
        caption=f"{title}: {test.name}: {description}." + ("" if chance is None else " The black line is chance."),
        lines=tuple(lines),
        ticks=ticks,
        margin=AXIS_PADDING * (max(ticks) - min(ticks)),
        log_y=False,
        level=chance,
        bounds=_compute_share_limits(lines, chance) if options["unit"] == "share" else None,
        **options,
    )


def _compute_share_limits(lines: Sequence[Line], chance: float | None) -> tuple[float, float]:
    values = [v for line in lines for part in (line.y, line.high) if part for v in part]
    top = max([*values, chance or 0.0], default=1.0) or 1.0
    return -AXIS_PADDING * top, (1 + 2 * AXIS_PADDING) * top


def _make_curves_panel(test: LearningTest, line_styles: LineStyles) -> Panel | None:
    results = [result for result in test.scored_results if result.get_first_samples("curve")]
    rates = [f"{result.best_attempts['train.learning_rate'].iloc[0]:g}" for result in results]
    same_rate, lines = len(set(rates)) == 1, []
    for result, rate in zip(results, rates, strict=True):
        x, y = zip(*result.get_first_samples("curve"), strict=True)
        lines.append(Line(result.label, line_styles[result.label], x, y, note="" if same_rate else f"rate {rate}"))
    last_steps = {max(line.x) for line in lines}
    seeds = sorted({int(result.best_attempts["seed"].iloc[0]) for result in results})
    best = f"which is {rates[0]} for all" if same_rate else "which is given after its name"
    description = f"one run each, with seed {formatting.join_words(map(str, seeds))} at its best learning rate, {best}"
    description += "; a line that ends early was solved, or had fewer steps" if len(last_steps) > 1 else ""
    steps = (max(last_steps, default=0) * i / STEP_TICKS for i in range(STEP_TICKS + 1))
    ticks = {step: units.integer(round(step)) for step in steps}
    labels = {"xlabel": "steps of training", "ylabel": f"{test.metric} on validation"}
    return _make_panel(test, "Learning", lines, description, ticks, log_x=False, **labels)


def _make_rates_panel(test: LearningTest, line_styles: LineStyles) -> Panel | None:
    """Score on validation against the learning rate, with the first seed; failed trainings have no point."""
    lines, sign = [], -1 if test.in_bits else 1
    for result in test.scored_results:
        points = sorted((tried.rate, sign * tried.score) for tried in result.tried_rates if tried.score is not None)
        if len(points) > 1:
            x, y = zip(*points, strict=True)
            lines.append(Line(result.label, line_styles[result.label], x, y))
    rates = sorted({rate for line in lines for rate in line.x})
    description = "the last score on validation with the first seed, by the highest learning rate"
    labels = {"xlabel": "learning rate", "ylabel": f"{test.metric} on validation"}
    return _make_panel(test, "By learning rate", lines, description, {rate: f"{rate:g}" for rate in rates}, **labels)


def _make_cost_panel(
    test: LearningTest,
    line_styles: LineStyles,
    title: str,
    column: str,
    description: str,
    xlabel: str,
    format_cost: Callable[[float], str],
) -> Panel | None:
    """Scores against a cost; None if it was not measured, and for states that do not differ."""
    lines = []
    for result in test.scored_results:
        if estimate := result.compute_mean(column):
            has_interval = estimate.low is None or estimate.low > 0  # others cannot be drawn on a logarithmic axis
            x, y = estimate if has_interval else Estimate(estimate.value), result.score or Estimate(math.nan)
            style = line_styles[result.label]
            if len(result.seed_scores) > 1 and result.seeds_disagree:
                lines.append(Line(result.label, style, [x.value] * len(result.seed_scores), result.seed_scores))
            else:
                lines.append(make_point(result.label, style, x, y))
    if not lines or (column == "state_bytes" and len({line.x[0] for line in lines}) == 1):
        return None
    description = f"the score against {description}" + (
        "; bars: 95% intervals over seeds" if any(line.low for line in lines) else ""
    )
    description += (
        "; several points of a mechanism: its seeds, if they differ by more than .05"
        if any(len(line.x) > 1 for line in lines)
        else ""
    )
    ends = [end for line in lines for end in line.list_x()]
    ticks = {mark: format_cost(mark) for mark in sorted({*(line.x[0] for line in lines), min(ends), max(ends)})}
    labels = {"xlabel": xlabel, "ylabel": test.metric}
    return _make_panel(test, title, lines, description, ticks, mark_type="points", **labels)


def _make_columns_panel(
    test: LearningTest, line_styles: LineStyles, title: str, columns: dict[int, str], description: str, **axes: Any
) -> Panel | None:
    """One line per mechanism through the means of columns, at the number of each."""
    lines, most = [], 1.0 if axes["unit"] == "share" else None
    for result in test.scored_results:
        means = {float(n): mean for n in sorted(columns) if (mean := result.compute_mean(columns[n], most))}
        if means:
            lines.append(make_line(result.label, line_styles[result.label], list(means), list(means.values())))
    description += "; mean over seeds"
    description += "; bands: 95% intervals over seeds" if any(line.low for line in lines) else ""
    ticks = {float(n): units.short_length(n) for n in sorted(columns)}
    return _make_panel(test, title, lines, description, ticks, **axes)


def _make_alignment_heatmap(test: LearningTest) -> Heatmap | None:
    samples = {result.label: result.get_first_samples("alignment") for result in test.scored_results}
    # there are too many cells for numbers
    grids = [HeatmapGrid(name, rows, [[""] * len(row) for row in rows]) for name, rows in samples.items() if rows]
    if not grids:
        return None
    return Heatmap(
        title=f"Alignment: {test.name}",
        caption=f"Alignment: {test.name}: one test example. Rows are target tokens, columns are source tokens, shades "
        "are attention weights, averaged over the heads of the last layer; one model per mechanism, with the first "
        "seed at its best learning rate.",
        grids=tuple(grids),
        column_labels=_make_tick_labels(max(len(grid.shares[0]) for grid in grids)),
        row_labels=_make_tick_labels(max(len(grid.shares) for grid in grids)),
        xlabel="source",
        ylabel="written",
    )


def _make_tick_labels(count: int) -> tuple[str, ...]:
    return tuple("" if n % TICK_INTERVAL else str(n) for n in range(1, count + 1))
