"""Figures of quality from rows: errors, perplexities and accuracies, in sets that were measured alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from ... import units
from ...results.stats import Estimate, estimate_geometric_mean, estimate_mean
from ..comparable_quality import QualityConditions, QualityFigure, QualitySet, canonicalise_spec
from ..gather import Frame
from ..sections.trained_scores import LearningTest, filter_trained, list_tests

ACCURACY_METRICS = ("accuracy", "share of whole sequences")  # metrics that are a share of correct answers
SEGMENT_COLUMN = "swap.segment"  # of a text; empty for older rows


def list_perplexities(rows: Frame) -> Iterator[QualitySet]:
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
    return QualityFigure("perplexity", ratio, text, conditions, runs, *ends, log_ratios=tuple(differences.tolist()))


def list_accuracies(rows: Frame) -> Iterator[tuple[str, QualitySet]]:
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


def list_retrieval(rows: Frame) -> Iterator[tuple[str, QualitySet]]:
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
