"""The table of shortcuts: simple methods without attention that a task's models are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from ... import units
from ..tables import ReportCell, ReportTable
from .trained_scores import LearningTest

PREFIX = "train.shortcut_"  # of columns, which end in a description with underscores
NOTE = (
    "Simple methods without attention, scored on the tests of the task. 'Better mechanisms' counts those that are "
    "significantly better, by their 95% interval or, without one, by their score."
)


def make_shortcut_table(tests: Sequence[LearningTest]) -> ReportTable | None:
    """A row for each shortcut of each test, the worst first; None without any."""
    body = [row for test in tests for row in _make_rows(test)]
    return ReportTable("Shortcuts", ("Task", "Shortcut", "Score", "Better mechanisms"), body, 2, NOTE) if body else None


def _make_rows(test: LearningTest) -> list[list[ReportCell]]:
    scores = {name: test.list_values(name) for name in test.results[0].rows if str(name).startswith(PREFIX)}
    names = sorted(
        (name for name in scores if scores[name]), key=lambda name: fmean(scores[name]), reverse=test.in_bits
    )
    return [_make_row(test, str(name), scores[name]) for name in names]


def _make_row(test: LearningTest, name: str, scores: list[float]) -> list[ReportCell]:
    """scores: one, or several if the shortcut is fitted to the examples of each training."""
    means = [(result, result.compute_mean(name)) for result in test.scored_results]
    n_better = sum(result.beats(mean.value) for result, mean in means if mean is not None)
    texts = dict.fromkeys(units.format_value(x, test.unit) for x in (min(scores), max(scores)))
    cells = (
        ReportCell(units.INTERVAL_DASH.join(texts), fmean(scores)),
        ReportCell(f"{n_better} of {len(means)}", n_better),
    )
    return [ReportCell(test.name), ReportCell(name.removeprefix(PREFIX).replace("_", " ")), *cells]
