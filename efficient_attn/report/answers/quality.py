"""Whether mechanisms satisfy bounds on quality.

A bound is satisfied only by exact mechanisms and by figures measured in the same direction at half the length or more.
All mechanisms of an answer are compared by one `QualitySet` for each quality. Without a bound they are compared by
perplexity, or by error where fewer than two mechanisms have a perplexity that counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ... import units
from ...errors import make_unknown_error
from ...results.stats import Estimate, estimate_geometric_mean, estimate_mean
from .. import approximation_errors, formatting, select
from ..comparable_quality import (
    MeasuredQuality,
    QualityChoice,
    QualityConditions,
    QualityFigure,
    QualitySet,
    canonicalise_spec,
)
from ..gather import Frame
from ..sections.trained_scores import filter_trained, list_tests
from .cost_curves import CostCurve
from .requirements import Requirements

MIN_PERPLEXITIES = 2  # of inexact mechanisms, from which on perplexity is preferred to error
EXACT_FIGURES = {
    "error": QualityFigure("error", 0.0, "exact"),
    "perplexity": QualityFigure("perplexity", 1.0, "the model's own perplexity"),
}


@dataclass(frozen=True)
class Quality:
    """Qualities measured in all rows, computed on first use."""

    rows: Frame

    def _label_rows(self, task: str | None = None) -> Frame:
        """The rows with labels: of a task, or all."""
        rows = select.filter_task(self.rows, task) if task else self.rows
        return rows if "label" in rows else select.add_labels(rows)

    @cached_property
    def errors(self) -> MeasuredQuality:
        """Relative errors of outputs against exact attention on a model's activations, mean over layers."""
        return approximation_errors.list_errors(self._label_rows("fidelity"))

    @cached_property
    def perplexity_ratios(self) -> MeasuredQuality:
        """Perplexities over the model's own."""
        rows = self._label_rows("swap")
        not_applicable = approximation_errors.list_not_applicable(rows, "swap")
        return MeasuredQuality(tuple(list_perplexities(rows)), not_applicable)

    @cached_property
    def accuracies(self) -> Mapping[str, MeasuredQuality]:
        """Accuracies by task."""
        sets: dict[str, list[QualitySet]] = defaultdict(list)
        rows = self._label_rows()
        for task, quality_set in (*list_accuracies(rows), *list_retrieval(rows)):
            sets[task].append(quality_set)
        return {task: MeasuredQuality(tuple(task_sets)) for task, task_sets in sets.items()}

    def check(self, requirements: Requirements) -> None:
        """Raise `UsageError` for a task without scores in these rows."""
        for task in requirements.min_accuracy:
            if task not in self.accuracies:
                raise make_unknown_error("task of --min-accuracy", task, sorted(self.accuracies))

    def compare(
        self, curves: Sequence[CostCurve], config: Mapping[str, Any], requirements: Requirements
    ) -> QualityComparison:
        """Choose what the answer for a configuration is based on. curves: the mechanisms that were timed there."""
        bounds = dict(_list_bounds(requirements))
        specs = {curve.spec for curve in curves if not is_exact(curve, config, requirements)}
        causal, dtype = config["causal"], config["dtype"]
        choices = {
            metric: self._find_measured(metric).choose(specs, length=requirements.seq_len, causal=causal, dtype=dtype)
            for metric in dict.fromkeys(("error", "perplexity", *bounds))
        }
        if not bounds:
            enough = sum(choices["perplexity"].find(spec) is not None for spec in specs) >= MIN_PERPLEXITIES
            metric = "perplexity" if enough and choices["perplexity"].verified else "error"
            bounds = {metric: lambda value: True}
        return QualityComparison(config, requirements, bounds, choices)

    def _find_measured(self, metric: str) -> MeasuredQuality:
        """All that was measured of a quality."""
        if metric == "error":
            return self.errors
        return self.perplexity_ratios if metric == "perplexity" else self.accuracies[metric]


def _list_bounds(requirements: Requirements) -> Iterator[tuple[str, Callable[[float], bool]]]:
    """Yield the metric of each bound, and whether a value satisfies it."""
    max_error, max_ratio = requirements.max_error, requirements.max_ppl_ratio
    if max_error is not None:
        yield "error", lambda value: value <= max_error
    if max_ratio is not None:
        yield "perplexity", lambda value: value <= max_ratio
    for task, least in requirements.min_accuracy.items():
        yield task, lambda value, least=least: value >= least


@dataclass(frozen=True)
class QualityComparison:
    """The qualities that one answer compares. bounds: whether a value satisfies the bound on a metric, or all values of
    a metric that is compared without one. choices: by metric of the bounds, of the error and the perplexity."""

    config: Mapping[str, Any]
    requirements: Requirements
    bounds: Mapping[str, Callable[[float], bool]]
    choices: Mapping[str, QualityChoice]

    def evaluate(self, curve: CostCurve) -> tuple[list[QualityFigure], str, dict[str, str]]:
        """The figures that the bounds are about; why a mechanism does not satisfy a bound, or else, by metric, why that
        is unknown. Both are empty if it satisfies all."""
        figures: list[QualityFigure] = []
        unverified: dict[str, str] = {}
        exact = is_exact(curve, self.config, self.requirements)
        for metric, meets in self.bounds.items():
            figure = self.find(curve, metric)
            if figure is not None and (figure.verified or exact):
                figures.append(figure.with_certainty(meets))
                if not meets(figure.value):
                    return figures, figures[-1].describe(curve.spec, with_conditions=False), {}
            elif not exact:  # exact ones have the accuracy of a model with exact attention, which was not measured
                name = metric if metric in EXACT_FIGURES else f"accuracy of {metric}"
                refusal = self._find_refusal(curve, metric) if figure is None else ""
                if refusal and self.requirements.has_quality_bounds:
                    return figures, f"{name} {refusal}", {}
                unverified[metric] = f"{name} {refusal or self.choices[metric].describe_unverified(curve.spec)}"
        return figures, "", unverified

    def find(self, curve: CostCurve, metric: str) -> QualityFigure | None:
        """A mechanism's figure in the chosen set, whether or not it was measured at the length in question."""
        if metric in EXACT_FIGURES and is_exact(curve, self.config, self.requirements):
            return EXACT_FIGURES[metric]
        return self.choices[metric].find(curve.spec)

    def list_compared(self, curve: CostCurve) -> dict[str, QualityFigure]:
        """A mechanism's perplexity and the bounded accuracies, as far as `find_better_neighbours` may compare them."""
        near = {metric: choice.find_near(curve.spec) for metric, choice in self.choices.items() if metric != "error"}
        if is_exact(curve, self.config, self.requirements):
            near["perplexity"] = EXACT_FIGURES["perplexity"]
        return {metric: figure for metric, figure in near.items() if figure is not None}

    def describe_error(self, curve: CostCurve) -> str:
        """A mechanism's error with its conditions, or the reason why it is unknown."""
        figure = self.find(curve, "error")
        if figure is None:
            missing = self._find_refusal(curve, "error") or self.choices["error"].describe_unverified(curve.spec)
            return f"error {missing}"
        text = figure.describe(curve.spec)
        return text if figure.verified else f"{text}; not verified at {self.requirements.seq_len:,}"

    def _find_refusal(self, curve: CostCurve, metric: str) -> str:
        """Why a quality is not applicable to a mechanism without training; empty if it is."""
        not_applicable = self.choices[metric].measured.not_applicable
        reason = approximation_errors.find_refusal(curve.spec, curve.kv_heads, not_applicable)
        return f"not applicable: {reason}" if reason and metric in EXACT_FIGURES else ""

    def list_notes(self) -> Iterator[str]:
        """Yield the conditions that all mechanisms are compared by, and what is not verified at this length."""
        longest: dict[int | None, list[str]] = defaultdict(list)
        for metric in self.bounds:
            choice = self.choices[metric]
            if choice.chosen is not None and choice.verified:
                yield f"Quality ({metric}) was compared in {choice.chosen.conditions.describe()}."
            elif not choice.verifiable:
                longest[choice.longest].append(metric)
        direction = formatting.format_direction(self.config["causal"])
        for measured_length, unverified in longest.items():
            quality = f"No quality ({', '.join(unverified)}, {direction}) was measured"
            beyond = f" beyond {measured_length:,} tokens" if measured_length else ""
            only = f"at {self.requirements.seq_len:,} only exact mechanisms are known to satisfy a bound on it."
            yield f"{quality}{beyond}; {only}"


def is_exact(curve: CostCurve, config: Mapping[str, Any], requirements: Requirements) -> bool:
    """Whether a mechanism computes the exact attention of the required model."""
    required_heads = config["heads"] if requirements.kv_heads is None else requirements.kv_heads
    shares_heads = curve.spec.partition(":")[0] in approximation_errors.SHARED_KV_MECHANISMS
    is_exact_model = shares_heads and curve.kv_heads is not None and curve.kv_heads == required_heads
    return curve.spec in approximation_errors.EXACT_MECHANISMS or is_exact_model


# -- from rows -----------------------------------------------------------------------------------------------------

ACCURACY_METRICS = ("accuracy", "share of whole sequences")  # metrics that are a share of correct answers


def list_perplexities(rows: Frame) -> Iterator[QualitySet]:
    """Yield perplexity ratios of models with all layers swapped, mean over text segments, which older rows lack."""
    if "swap.loss" not in rows:
        return
    rows = rows[(rows["status"] == "ok") & (rows["task"] == "swap") & rows["layer"].isna() & rows["swap.loss"].notna()]
    rows = rows.assign(segment=rows.get("swap.segment", float("nan")))
    for (inputs, length, causal), part in rows.groupby(["inputs", "seq_len", "causal"], sort=True):
        figures: dict[QualityConditions, dict[str, QualityFigure]] = {}
        for variant, variant_rows in part.groupby("variant", sort=False):
            segments = _list_segments(variant_rows)
            conditions = QualityConditions(str(inputs), int(length), _as_bool(causal), segments, "text segment")
            figure = _make_perplexity(variant_rows, part[part["is_baseline"]], conditions)
            if figure is not None:
                figures.setdefault(conditions, {})[canonicalise_spec(str(variant))] = figure
        yield from (QualitySet(conditions, by_spec) for conditions, by_spec in figures.items())


def _list_segments(rows: Frame) -> tuple[Any, ...]:
    return tuple(sorted(rows["segment"].dropna().unique()))


def _make_perplexity(rows: Frame, baseline_rows: Frame, conditions: QualityConditions) -> QualityFigure | None:
    """The figure of a mechanism, with its interval over text segments that both read; None if the unmodified model did
    not read the same segments."""
    if conditions.samples:
        baseline_rows = baseline_rows[baseline_rows["segment"].isin(conditions.samples)]
        if _list_segments(baseline_rows) != conditions.samples:
            return None
    # repeated segments count once
    losses, baseline_losses = (x.groupby("segment")["swap.loss"].mean() for x in (rows, baseline_rows))
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
            task, causal = test.name.split(",")[0], next(iter(test.list_values("causal")), None)
            seeds = tuple(sorted(map(int, test.list_values("seed"))))
            conditions = QualityConditions("small models", test.length, _as_bool(causal), seeds, "seed")
            figures = {
                canonicalise_spec(str(x.rows.iloc[0]["variant"])): _make_accuracy(
                    task, x.score, conditions, x.best_attempts
                )
                for x in test.scored_results
                if x.score is not None and not x.unranked_reason
            }
            yield task, QualitySet(conditions, figures)


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
    return Estimate(mean.value, *(float(end) if units.is_present(end) else None for end in ends))
