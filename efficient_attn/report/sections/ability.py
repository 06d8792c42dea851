"""Trained tasks: scores of small models trained from scratch with each mechanism, and all attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ... import units
from ...results.section import Section
from ...units import Unit
from .. import select
from ..drawing.figures import PlotContext
from ..tables import ReportCell, ReportTable, show_label, show_value
from .learning_curves import list_distance_columns, list_length_columns, make_score_plots
from .mechanism_result import MechanismResult
from .prediction_table import make_prediction_table
from .section_blocks import Chapter, SectionBlock, SectionData, make_blocks
from .shortcut_table import make_shortcut_table
from .trained_scores import BITS_METRIC, LearningTest, filter_trained, list_tests, order_labels
from .training_costs import list_attempts, make_cost_table
from .uptraining_table import make_uptraining_panels, make_uptraining_tables

INTRO = (
    "Small models that differ only in their attention mechanism are trained from scratch and tested on unseen "
    "examples, until the score on validation has levelled off: its mean has improved by less than .005, or 1% of the "
    "remaining error, from the quarter before the last to the last quarter of the steps, and two standard errors more "
    "would be no more (in runs of older versions: the best score had, whatever its noise). The scores hold for this "
    "model size and number of seeds; larger models may give other results. Swapping the attention of a trained model "
    "is a different experiment, as its weights are not trained for the mechanism. Each cell is the mean over seeds at "
    "the learning rate that was best on validation, with its 95% interval over seeds in brackets; where seeds differ "
    "by more than .05, each is shown. 'still improving': training ended at the largest number of steps, the same for "
    "all. 'rate at the edge': the best learning rate was the largest or smallest tried. Neither is ranked. 'chance' "
    "is a random guess, 'majority' the most frequent answer, 'shortcut' the best simple method without attention that "
    "was computed for the task. A mechanism is marked as not better than the shortcut unless its whole 95% interval "
    "is. 'not learned': no attempt was significantly better than chance and majority, with any learning rate."
)
AT_SHORTCUT_TEXT = "not better than the shortcut"
LOWER_IS_BETTER_NOTE = " For bits, lower is better."


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter on trained models."""
    rows = filter_trained(section_data.rows)
    # the setting's batch is that of timed calls; the batch of training is listed by task
    rows = rows.assign(batch=None)
    intro = INTRO + (LOWER_IS_BETTER_NOTE if (rows["metric"] == BITS_METRIC).any() else "")
    return Chapter(section.title, intro, make_blocks(rows, section_data, _fill_block))


def _fill_block(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    tests = [test for test in list_tests(setting.rows) if test.scored_results]
    if not tests:
        return
    labels = order_labels(tests)
    block.tables += filter(None, [_make_table(tests, labels), make_shortcut_table(tests), make_prediction_table(tests)])
    block.tables += [table for test in tests for table in make_uptraining_tables(test)]
    block.tables += [_make_training_table(tests), make_cost_table(tests)]
    block.tables += _make_spread_tables(tests, labels)
    block.tables.append(list_attempts(tests))
    for test in tests:
        block.pictures += [*make_uptraining_panels(test, context), *make_score_plots(test, context)]


def _make_table(tests: Sequence[LearningTest], labels: Sequence[str]) -> ReportTable:
    """A row per mechanism and a column per test, after rows of computed scores."""
    body = []
    for name in ("chance", "majority", "shortcut"):
        if any(name in test.computed_scores for test in tests):
            scores = (show_value(test.computed_scores.get(name), test.unit) for test in tests)
            body.append([ReportCell(name, mark="null"), *scores])
    for label in labels:
        results = [test.find(label) for test in tests]
        is_baseline = any(result is not None and result.is_baseline for result in results)
        body.append([show_label(label, is_baseline=is_baseline), *map(_show_result, tests, results)])
    seed_counts = [len(result.best_attempts) for test in tests for result in test.scored_results]
    seeds = f"mean over {_format_span(seed_counts)} {'seed' if max(seed_counts) == 1 else 'seeds'}"
    note = [text for test in tests for text in test.list_remarks()]
    note += [_describe_reach(test, result) for test in tests for result in test.scored_results]
    caption = f"Scores: {seeds}" + (", with its 95% interval" if max(seed_counts) > 1 else "")
    return ReportTable(caption, ("Variant", *(test.heading for test in tests)), body, note=" ".join(filter(None, note)))


def _show_result(test: LearningTest, result: MechanismResult | None) -> ReportCell:
    if result is None:
        return ReportCell(units.EMPTY)
    cell, subtext = result.show_score(), AT_SHORTCUT_TEXT if result.at_shortcut else ""
    is_ranked = test.is_ranked and not result.unranked_reason
    return ReportCell(cell.text, cell.sort if is_ranked else None, subtext=subtext)  # without ranking, it is not sorted


def _describe_reach(test: LearningTest, result: MechanismResult) -> str:
    """Describe the best score within a mechanism's reach, if that is not the whole task."""
    if result.reach is None or result.reach >= 1:
        return ""
    learned_text = ", and it learned everything within its reach" if result.learned_within_reach else ""
    reach = f"the answers within reach, and guesses of the others, score {units.percent(result.reach)}"
    return f"{test.name}: with {result.label} {reach}{learned_text}."


def _make_training_table(tests: Sequence[LearningTest]) -> ReportTable:
    body = []
    for test in tests:
        _, shortcut = test.find_shortcut() or (0.0, "")
        attempts = [result.scored_attempts for result in test.scored_results]
        rates = sorted({rate for rows in attempts for rate in rows["train.learning_rate"].tolist()})
        texts = (test.name, test.metric, shortcut or units.EMPTY, ", ".join(f"{rate:g}" for rate in rates))
        counts = [test.list_values(name) for name in ("parameters", "train.budget", "train.batch", "train.examples")]
        counts.append([len(result.best_attempts) for result in test.scored_results])
        cells = [ReportCell(_format_span(values), float(max(values))) for values in counts if values]
        body.append([*map(ReportCell, texts), *cells])
    head = ("Task", "Scored by", "Shortcut", "Learning rates tried")
    head += ("Parameters", "Steps at most", "Examples a step", "Examples of the test", "Seeds")
    return ReportTable("How it was trained", head, body, text_columns=4)


def _format_span(values: Iterable[Any]) -> str:
    """``3``, or ``1 to 3``."""
    distinct = sorted(set(values))
    return " to ".join(units.integer(x) for x in dict.fromkeys((distinct[0], distinct[-1])))


def _make_spread_tables(tests: Sequence[LearningTest], labels: Sequence[str]) -> Iterator[ReportTable]:
    """Scores at other lengths than in training, and by distance of the answer, if there are several."""
    for test in tests:
        if columns := list_length_columns(test):
            heads = {f"length {n}": columns[n] for n in sorted(columns)}
            caption = f"{test.heading}: by the length of the tests, trained at {test.length}"
            yield _make_spread_table(caption, test, labels, heads, test.unit)
        if columns := list_distance_columns(test):
            heads = {f"{format_distance_range(edge)} back": name for edge, name in columns.items()}
            yield _make_spread_table(f"{test.name}: accuracy by distance of the answer", test, labels, heads, "share")


def _make_spread_table(
    caption: str, test: LearningTest, labels: Sequence[str], heads: dict[str, str], unit: Unit
) -> ReportTable:
    body = []
    for result in sorted(test.scored_results, key=lambda result: labels.index(result.label)):
        means = [result.compute_mean(column) for column in heads.values()]
        cells = [show_value(mean and mean.value, unit) for mean in means]
        body.append([show_label(result.label, is_baseline=result.is_baseline), *cells])
    return ReportTable(f"{caption}, mean over seeds", ("Variant", *heads), body)


def format_distance_range(edge: int) -> str:
    """Range of distances of a column: at most ``edge``, and more than half of it."""
    low = edge // 2 + 1
    return str(edge) if low >= edge else f"{low}{units.INTERVAL_DASH}{edge}"
