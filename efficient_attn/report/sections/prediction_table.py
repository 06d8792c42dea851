"""Prediction: whether mechanisms that are better at a constructed task are also better at language modelling."""

from __future__ import annotations

from collections.abc import Sequence

from ... import units
from ...results.rank_correlation import LEAST_PAIRS, estimate_rank_correlation
from ..tables import ReportCell, ReportTable
from .mechanism_result import MechanismResult
from .trained_scores import LearningTest

LANGUAGE_TASK = "lm"
NOTE = (
    "Spearman's rank correlation between the mechanisms' scores on the task and their bits in language modelling, "
    "positive if better mechanisms on the task are better at both, with its 95% interval (Bonett and Wright, 2000). "
    "'undecided': the interval contains 0. Each interval is of its task alone, without a correction for several tasks, "
    "and treats the mechanisms as a random sample, which they are not. Scores at chance count as equal. Differences "
    "between seeds lower a correlation. Left out: mechanisms without a final score on both, that is still improving, "
    "with the best learning rate at the edge, too early to say, or failed. "
)


def make_prediction_table(tests: Sequence[LearningTest]) -> ReportTable | None:
    """A row for each task and test of language modelling; None unless `LEAST_PAIRS` mechanisms have a score on both."""
    pairs = [
        (test, language_test)
        for language_test in tests
        if language_test.task == LANGUAGE_TASK and language_test.is_ranked
        for test in tests
        if test.task != LANGUAGE_TASK and test.is_ranked and len(_list_common(test, language_test)) >= LEAST_PAIRS
    ]
    if not pairs:
        return None
    sizes = sorted({int(x) for pair in pairs for test in pair for x in test.list_values("parameters")})
    span = " to ".join(dict.fromkeys(units.integer(x) for x in (sizes[0], sizes[-1])))
    caveat = f"The models have {span} parameters; whether larger ones would be ordered so is not measured."
    head = ("Task", "Language modelling", "Mechanisms", "Left out", "Rank correlation", "Verdict")
    body = [_make_row(test, language_test) for test, language_test in pairs]
    return ReportTable("Do these tasks predict language modelling?", head, body, 2, NOTE + caveat, wrapped=("Verdict",))


def _list_common(test: LearningTest, language_test: LearningTest) -> list[tuple[MechanismResult, MechanismResult]]:
    """The results of mechanisms with a score in both tests."""
    results = ((result, language_test.find(result.label)) for result in test.scored_results)
    return [(result, other) for result, other in results if other is not None and other.score is not None]


def _make_row(test: LearningTest, language_test: LearningTest) -> list[ReportCell]:
    labels = {result.label for either in (test, language_test) for result in either.results}
    common = _list_common(test, language_test)
    final = [(a, b) for a, b in common if a.is_final and b.is_final]
    cells = [ReportCell(test.name), ReportCell(language_test.name)]
    cells += [ReportCell(str(n), float(n)) for n in (len(final), len(labels) - len(final))]
    if len(final) < LEAST_PAIRS:
        return [*cells, ReportCell(units.EMPTY), ReportCell(f"fewer than {LEAST_PAIRS} final scores")]
    scores = [_read_quality(test, a) for a, _ in final], [_read_quality(language_test, b) for _, b in final]
    estimate = estimate_rank_correlation(*scores)
    if estimate is None:
        return [*cells, ReportCell(units.EMPTY), ReportCell("all scores are equal")]
    low, high = estimate.ends
    text = f"{estimate.value:.2f} ({low:.2f} to {high:.2f})"
    verdict = "positive" if low > 0 else "negative" if high < 0 else "undecided"
    return [*cells, ReportCell(text, estimate.value), ReportCell(verdict)]


def _read_quality(test: LearningTest, result: MechanismResult) -> float:
    """The score, higher is better; at chance, that of a model that has learned nothing."""
    assert result.score is not None
    sign = -1 if test.in_bits else 1
    trivial = [sign * test.computed_scores[name] for name in ("chance", "majority") if name in test.computed_scores]
    return max(trivial) if result.at_chance and trivial else sign * result.score.value
