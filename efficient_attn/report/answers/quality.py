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
from ..comparable_quality import MeasuredQuality, QualityChoice, QualityFigure, QualitySet, canonicalise_spec
from ..gather import Frame
from .cost_curves import CostCurve
from .quality_figures import list_accuracies, list_perplexities, list_retrieval
from .requirements import Requirements

MIN_PERPLEXITIES = 2  # of inexact mechanisms, from which on perplexity is preferred to error


@dataclass(frozen=True)
class QualityBound:
    """A bound of the requirements on a quality, or a quality that is compared without one."""

    metric: str
    name: str
    meets: Callable[[float], bool]


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
        bounds = tuple(_list_bounds(requirements))
        specs = {name_spec(curve) for curve in curves if not is_exact(curve, config, requirements)}
        causal, dtype = config["causal"], config["dtype"]
        choices = {
            metric: self._find_measured(metric).choose(specs, length=requirements.seq_len, causal=causal, dtype=dtype)
            for metric in dict.fromkeys(("error", "perplexity", *(bound.metric for bound in bounds)))
        }
        if not bounds:
            enough = sum(choices["perplexity"].find(spec) is not None for spec in specs) >= MIN_PERPLEXITIES
            metric = "perplexity" if enough and choices["perplexity"].verified else "error"
            bounds = (QualityBound(metric, metric, lambda value: True),)
        return QualityComparison(config, requirements, bounds, choices)

    def _find_measured(self, metric: str) -> MeasuredQuality:
        """All that was measured of a quality."""
        if metric == "error":
            return self.errors
        return self.perplexity_ratios if metric == "perplexity" else self.accuracies[metric]


def _list_bounds(requirements: Requirements) -> Iterator[QualityBound]:
    max_error, max_ratio = requirements.max_error, requirements.max_ppl_ratio
    if max_error is not None:
        yield QualityBound("error", "error", lambda value: value <= max_error)
    if max_ratio is not None:
        yield QualityBound("perplexity", "perplexity", lambda value: value <= max_ratio)
    for task, least in requirements.min_accuracy.items():
        yield QualityBound(task, f"accuracy of {task}", lambda value, least=least: value >= least)


EXACT_FIGURES = {
    "error": QualityFigure("error", 0.0, "exact"),
    "perplexity": QualityFigure("perplexity", 1.0, "the model's own perplexity"),
}


@dataclass(frozen=True)
class QualityComparison:
    """The qualities that one answer compares. choices: by metric of the bounds, of the error and the perplexity."""

    config: Mapping[str, Any]
    requirements: Requirements
    bounds: tuple[QualityBound, ...]
    choices: Mapping[str, QualityChoice]

    def evaluate(self, curve: CostCurve) -> QualityVerdict:
        """Whether a mechanism satisfies all bounds; a failure is reported rather than a missing measurement."""
        figures: list[QualityFigure] = []
        unverified: dict[str, str] = {}
        for bound in self.bounds:
            figure = self.find(curve, bound.metric)
            exact = is_exact(curve, self.config, self.requirements)
            if figure is None and exact:
                continue  # it has the accuracy of a model with exact attention, which was not measured
            if figure is None and (reason := self._find_refusal(curve, bound.metric)):
                refusal = f"{bound.name} not applicable: {reason}"
                if self.requirements.has_quality_bounds:
                    return QualityVerdict(tuple(figures), refusal)
                unverified[bound.metric] = refusal
                continue
            if figure is None or not (figure.verified or exact):
                missing = self.choices[bound.metric].describe_unverified(name_spec(curve))
                unverified[bound.metric] = f"{bound.name} {missing}"
                continue
            figures.append(figure.with_certainty(bound.meets))
            if not bound.meets(figure.value):
                failure = figures[-1].describe(name_spec(curve), with_conditions=False)
                return QualityVerdict(tuple(figures), failure)
        return QualityVerdict(tuple(figures), unverified=unverified)

    def find(self, curve: CostCurve, metric: str) -> QualityFigure | None:
        """A mechanism's figure in the chosen set, whether or not it was measured at the length in question."""
        if metric in EXACT_FIGURES and is_exact(curve, self.config, self.requirements):
            return EXACT_FIGURES[metric]
        return self.choices[metric].find(name_spec(curve))

    def list_compared(self, curve: CostCurve) -> dict[str, QualityFigure]:
        """A mechanism's perplexity and the bounded accuracies, as far as `find_better_neighbours` may compare them."""
        near = {x: choice.find_near(name_spec(curve)) for x, choice in self.choices.items() if x != "error"}
        if is_exact(curve, self.config, self.requirements):
            near["perplexity"] = EXACT_FIGURES["perplexity"]
        return {metric: figure for metric, figure in near.items() if figure is not None}

    def describe_error(self, curve: CostCurve) -> str:
        """A mechanism's error with its conditions, or the reason why it is unknown."""
        figure = self.find(curve, "error")
        missing = self.choices["error"].describe_unverified(name_spec(curve))
        if figure is None:
            reason = self._find_refusal(curve, "error")
            return f"error not applicable: {reason}" if reason else f"error {missing}"
        text = figure.describe(name_spec(curve))
        return text if figure.verified else f"{text}; not verified at {self.requirements.seq_len:,}"

    def _find_refusal(self, curve: CostCurve, metric: str) -> str:
        """Why a quality is not applicable to a mechanism; empty if it is."""
        not_applicable = self.choices[metric].measured.not_applicable
        if metric not in EXACT_FIGURES:
            return not_applicable.get(name_spec(curve), "")
        return approximation_errors.find_refusal(name_spec(curve), curve.kv_heads, not_applicable)

    def list_notes(self) -> Iterator[str]:
        """Yield the conditions that all mechanisms are compared by, and what is not verified at this length."""
        length, metrics = self.requirements.seq_len, [bound.metric for bound in self.bounds]
        longest: dict[int | None, list[str]] = defaultdict(list)
        for metric in metrics:
            choice = self.choices[metric]
            if choice.chosen is not None and choice.verified:
                yield f"Quality ({metric}) was compared in {choice.chosen.conditions.describe()}."
            elif not choice.verifiable:
                longest[choice.longest].append(metric)
        direction = formatting.format_direction(self.config["causal"])
        for measured_length, unverified in longest.items():
            quality = f"No quality ({', '.join(unverified)}, {direction}) was measured"
            beyond = f" beyond {measured_length:,} tokens" if measured_length else ""
            yield f"{quality}{beyond}; at {length:,} only exact mechanisms are known to satisfy a bound on it."


def is_exact(curve: CostCurve, config: Mapping[str, Any], requirements: Requirements) -> bool:
    """Whether a mechanism computes the exact attention of the required model."""
    if approximation_errors.is_exact(curve.row):
        return True
    shares_heads = name_spec(curve).partition(":")[0] in approximation_errors.SHARED_KV_MECHANISMS
    required_heads = config["heads"] if requirements.kv_heads is None else requirements.kv_heads
    return shares_heads and curve.kv_heads is not None and curve.kv_heads == required_heads


def name_spec(curve: CostCurve) -> str:
    """The canonical spec of a curve's mechanism, without its backend."""
    return canonicalise_spec(str(curve.row["variant"]))
