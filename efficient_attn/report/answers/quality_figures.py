"""Figures of quality from rows: errors, perplexities and accuracies, in sets that were measured alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ... import units
from ...errors import make_deprecated_alias
from ...results.stats import Estimate, estimate_geometric_mean, estimate_mean
from .. import approximation_errors
from ..comparable_quality import QualityConditions, QualitySet, canonicalise_spec
from ..gather import Frame
from ..sections.trained_scores import LearningTest, filter_trained, list_tests

ACCURACY_METRICS = ("accuracy", "share of whole sequences")  # metrics that are a share of correct answers
SEGMENT_COLUMN = "swap.segment"  # of a text; empty for older rows
UNCERTAIN = "uncertain"  # marks a decision by a value whose 95% interval contains the bound


@dataclass(frozen=True)
class QualityFigure:
    """A measured quality. metric: ``error``, ``perplexity``, or the task of an accuracy. conditions: of its
    measurement, None for exact mechanisms. runs: the runs with its rows. low, high: its 95% interval, over layers,
    seeds, text segments or questions, if there is one. measured_spec: the spec that was measured, which may differ from
    the mechanism's by `comparable_quality.MAX_OPTION_DIFFERENCE`. verified: whether it was measured in the direction in
    question, at half the length or more. sure: whether the whole interval lies on the value's side of the bound; None
    without an interval or a bound."""

    metric: str
    value: float
    text: str
    conditions: QualityConditions | None = None
    runs: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    measured_spec: str | None = None
    verified: bool = True
    sure: bool | None = None

    what = make_deprecated_alias("what", "metric")

    @property
    def on(self) -> str:
        """The conditions as text: ``MiniLM, N = 384, bidirectional, mean over 3 layers``."""
        return self.conditions.describe() if self.conditions else "any model"

    @property
    def is_exact(self) -> bool:
        """Whether the measured calls computed exact attention, up to rounding."""
        exact_value = {"error": 0.0, "perplexity": 1.0}.get(self.metric, math.inf)
        return abs(self.value - exact_value) < approximation_errors.ROUNDING_ERROR

    @property
    def length(self) -> int | None:
        """The length of the measured calls."""
        return self.conditions.length if self.conditions else None

    @property
    def causal(self) -> bool | None:
        """Whether the measured calls were causal."""
        return self.conditions.causal if self.conditions else None

    def with_certainty(self, meets_bound: Callable[[float], bool]) -> QualityFigure:
        """Return a copy with ``sure`` set for this bound."""
        if self.low is None or self.high is None:
            return self
        return replace(self, sure=meets_bound(self.low) == meets_bound(self.value) == meets_bound(self.high))

    def format_uncertainty(self) -> str:
        """``uncertain: 82.4%-100%``; empty if certain or unknown."""
        if self.sure is not False:
            return ""
        format_value = {"perplexity": units.ratio, "error": units.number}.get(self.metric, units.percent)
        return f"{UNCERTAIN}: {format_value(self.low)}{units.INTERVAL_DASH}{format_value(self.high)}"

    def describe(self, spec: str) -> str:
        """``relative error 0.40 (MiniLM, N = 384, bidirectional, mean over 3 layers)``. spec: the mechanism's."""
        if self.conditions is None:
            return self.text
        measured_spec = approximation_errors.describe_measured_spec(spec, self.measured_spec)
        return "; ".join(filter(None, (f"{self.text} ({self.on}{measured_spec})", self.format_uncertainty())))


# -- from rows --------------------------------------------------------------------------------------------------------


def list_error_sets(
    sets: Iterable[QualitySet[approximation_errors.SpecError]],
) -> Iterator[QualitySet[QualityFigure]]:
    """Yield approximation errors as figures."""
    for errors in sets:
        figures = {
            spec: QualityFigure(
                "error", error.error, f"relative error {units.number(error.error)}", errors.conditions, error.runs
            )
            for spec, error in errors.figures.items()
        }
        yield QualitySet(errors.conditions, figures)


def list_perplexities(rows: Frame) -> Iterator[QualitySet[QualityFigure]]:
    """Yield perplexity ratios of models with all layers swapped, mean over text segments."""
    if "swap.loss" not in rows:
        return
    swap_rows = rows[
        (rows["status"] == "ok") & (rows["task"] == "swap") & rows["layer"].isna() & rows["swap.loss"].notna()
    ]
    if SEGMENT_COLUMN not in rows:
        swap_rows = swap_rows.assign(**{SEGMENT_COLUMN: float("nan")})
    for (inputs, length, causal), part in swap_rows.groupby(["inputs", "seq_len", "causal"], sort=True):
        figures: dict[QualityConditions, dict[str, QualityFigure]] = {}
        for variant, variant_rows in part.groupby("variant", sort=False):
            segments = _list_segments(variant_rows)
            conditions = QualityConditions(str(inputs), int(length), _as_bool(causal), segments, "text segment")
            figure = _make_perplexity(variant_rows, part[part["is_baseline"]], conditions)
            if figure is not None:
                figures.setdefault(conditions, {})[canonicalise_spec(str(variant))] = figure
        yield from (QualitySet(conditions, by_spec) for conditions, by_spec in figures.items())


def _list_segments(rows: Frame) -> tuple[Any, ...]:
    return tuple(sorted(rows[SEGMENT_COLUMN].dropna().unique()))


def _make_perplexity(rows: Frame, baseline_rows: Frame, conditions: QualityConditions) -> QualityFigure | None:
    """The figure of a mechanism, with its interval over text segments that both read; None if the unmodified model did
    not read the same segments."""
    if conditions.samples:
        baseline_rows = baseline_rows[baseline_rows[SEGMENT_COLUMN].isin(conditions.samples)]
        if _list_segments(baseline_rows) != conditions.samples:
            return None
    # repeated segments count once
    losses, baseline_losses = (x.groupby(SEGMENT_COLUMN)["swap.loss"].mean() for x in (rows, baseline_rows))
    differences = (losses - baseline_losses).dropna()
    average = losses.mean() if len(losses) else rows["swap.loss"].mean()
    baseline_average = baseline_losses.mean() if len(baseline_losses) else baseline_rows["swap.loss"].mean()
    ratio = math.exp(average - baseline_average)
    if not math.isfinite(ratio):
        return None
    ends = estimate_geometric_mean([math.exp(x) for x in differences])[1:] if len(differences) else (None, None)
    text, runs = f"{units.ratio(ratio)} the perplexity", tuple(dict.fromkeys(rows["run_id"]))
    return QualityFigure("perplexity", ratio, text, conditions, runs, *ends)


def list_accuracies(rows: Frame) -> Iterator[tuple[str, QualitySet[QualityFigure]]]:
    """Yield accuracies of small trained models, mean over seeds at the best learning rate, with their task."""
    for test in list_tests(filter_trained(rows)):
        if test.metric in ACCURACY_METRICS and test.scored_results:
            task, conditions = test.name.split(",")[0], _make_test_conditions(test)
            figures: dict[str, QualityFigure] = {}
            for trained in test.scored_results:
                assert trained.score is not None
                spec = canonicalise_spec(str(trained.rows.iloc[0]["variant"]))
                figures[spec] = _make_accuracy(task, trained.score, conditions, trained.best_attempts)
            yield task, QualitySet(conditions, figures)


def _make_test_conditions(test: LearningTest) -> QualityConditions:
    best = [trained.best_attempts for trained in test.scored_results]
    seeds = sorted({int(seed) for attempts in best for seed in attempts["seed"].dropna()})
    return QualityConditions("small models", test.length, _as_bool(best[0]["causal"].iloc[0]), tuple(seeds), "seed")


def list_retrieval(rows: Frame) -> Iterator[tuple[str, QualitySet[QualityFigure]]]:
    """Yield accuracies of a model that retrieves needles from a text."""
    retrieval_rows: Any = rows[(rows["status"] == "ok") & (rows["task"] == "retrieval") & rows["accuracy"].notna()]
    key_columns = ["inputs", "seq_len", "causal"]
    for (inputs, length, causal), part in retrieval_rows.groupby(key_columns, sort=True, dropna=False):
        conditions, needles = QualityConditions(str(inputs), int(length), _as_bool(causal)), str(inputs).split(":")[2:]
        figures = {
            canonicalise_spec(str(variant)): _make_accuracy("retrieval", _estimate_accuracy(x), conditions, x, needles)
            for variant, x in part.groupby("variant", sort=False)
        }
        yield "retrieval", QualitySet(conditions, figures)


def _make_accuracy(
    task: str, score: Estimate, conditions: QualityConditions, rows: Frame, kinds: Iterable[str] = ()
) -> QualityFigure:
    """The figure of an accuracy. kinds: of the task's questions, to name in the text."""
    text, runs = f"{units.percent(score.value)} of {', '.join((task, *kinds))}", tuple(dict.fromkeys(rows["run_id"]))
    return QualityFigure(task, score.value, text, conditions, runs, score.low, score.high)


def _as_bool(value: Any) -> bool | None:
    return bool(value) if units.is_present(value) else None


def _estimate_accuracy(rows: Frame) -> Estimate:
    """Share of correct answers: of one row with its interval over questions, else the mean over rows."""
    mean = estimate_mean(rows["accuracy"].tolist())
    if len(rows) > 1:
        low, high = mean.interval() or (0.0, 1.0)
        return Estimate(mean.value, max(low, 0.0), min(high, 1.0))
    ends = [rows.iloc[0].get(f"retrieval.accuracy_{end}") for end in ("low", "high")]
    low, high = (float(end) if units.is_present(end) else None for end in ends)
    return Estimate(mean.value, low, high)
