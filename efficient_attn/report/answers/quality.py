"""Whether mechanisms satisfy bounds on quality.

A bound is satisfied only by exact mechanisms and by figures measured in the same direction at half the length or more.
All mechanisms of an answer are compared by one `QualitySet` for each quality. Without a bound they are compared by
perplexity, or by error where fewer than two mechanisms have a perplexity that counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...errors import make_unknown_error
from .. import approximation_errors, formatting, select
from ..comparable_quality import MeasuredQuality, QualityChoice, QualityFigure, QualitySet
from ..gather import Frame
from .cost_curves import CostCurve
from .quality_figures import list_accuracies, list_perplexities, list_retrieval
from .requirements import Requirements

MIN_PERPLEXITIES = 2  # of inexact mechanisms, from which on perplexity is preferred to error
EXACT_FIGURES = {
    "error": QualityFigure("error", 0.0, "exact"),
    "perplexity": QualityFigure("perplexity", 1.0, "the model's own perplexity"),
}


@dataclass(frozen=True)
class QualityVerdict:
    """Whether a mechanism satisfies the bounds on quality. figures: those that the bounds are about. failure: why it
    does not; unverified: by metric, why that is unknown; both empty if it does."""

    figures: tuple[QualityFigure, ...] = ()
    failure: str = ""
    unverified: Mapping[str, str] = field(default_factory=dict)


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

    def evaluate(self, curve: CostCurve) -> QualityVerdict:
        """Whether a mechanism satisfies all bounds; a failure is reported rather than a missing measurement."""
        figures: list[QualityFigure] = []
        unverified: dict[str, str] = {}
        exact = is_exact(curve, self.config, self.requirements)
        for metric, meets in self.bounds.items():
            figure = self.find(curve, metric)
            if figure is not None and (figure.verified or exact):
                figures.append(figure.with_certainty(meets))
                if not meets(figure.value):
                    return QualityVerdict(tuple(figures), figures[-1].describe(curve.spec, with_conditions=False))
            elif not exact:  # exact ones have the accuracy of a model with exact attention, which was not measured
                name = metric if metric in EXACT_FIGURES else f"accuracy of {metric}"
                refusal = self._find_refusal(curve, metric) if figure is None else ""
                if refusal and self.requirements.has_quality_bounds:
                    return QualityVerdict(tuple(figures), f"{name} {refusal}")
                unverified[metric] = f"{name} {refusal or self.choices[metric].describe_unverified(curve.spec)}"
        return QualityVerdict(tuple(figures), unverified=unverified)

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
    return curve.spec == "full" or (shares_heads and curve.kv_heads is not None and curve.kv_heads == required_heads)
