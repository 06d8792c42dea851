"""Recommend mechanisms: those that satisfy the requirements, fastest first, each with the rows behind it.

Times are compared as ratios at the same lengths of one machine (`pooled_times`), so that drift of the machine cancels.
Mechanisms that are not significantly different from the first of a rank share that rank. Mechanisms whose quality was
not measured at half the length in question or more are listed apart, without a rank. Without a bound on quality only
the Pareto set of time and quality is ranked. `better_neighbours` leaves out mechanisms with a clearly better neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import units
from ...errors import make_deprecated_alias, make_unknown_error
from ..comparable_quality import QualityFigure
from .better_neighbours import BetterNeighbour, Competitor, find_better_neighbours, is_significantly_better
from .cost_curves import CostAtLength, CostCurve
from .pooled_times import GROUP_SPREAD, Z_95
from .recommendation_data import RecommendationData
from .requirements import Requirements, find_dtype_refusal, find_nearest, matches

MIN_MECHANISMS = 2  # timed on this machine, else the machine with most timings is used


@dataclass(frozen=True)
class Candidate:
    """A mechanism that satisfies the requirements on cost. error_text: its error, or why it is unknown; error,
    perplexity: the figures, also of other lengths. quality: the figures that the requirements bound, or that are
    compared without a bound. compared: those that `find_better_neighbours` compares. reasons: by metric, why its
    quality is unknown at the length in question. rank: from 1, shared by mechanisms not significantly different; None
    if quality is unknown."""

    label: str
    cost: CostAtLength
    error_text: str
    error: QualityFigure | None = None
    perplexity: QualityFigure | None = None
    quality: tuple[QualityFigure, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    rank: int | None = None
    compared: Mapping[str, QualityFigure] = field(default_factory=dict)

    taken = make_deprecated_alias("taken", "cost")
    loss = make_deprecated_alias("loss", "error_text")


@dataclass(frozen=True)
class Recommendation:
    """A ranking at one configuration. config: None if no matching configuration was timed. left_out: the reason by
    mechanism; neighbours: those left out because of a better neighbour. not_verified: mechanisms of unknown quality,
    fastest first; they satisfy no bound on quality. quality_notes: under which conditions quality was compared.
    machines: those with timings at matching configurations. timed_count, measured_count: number of mechanisms with a
    time at this length, and with one measured at exactly this length, whatever their quality. local_machine: this
    machine's name, if given. nearest: if nothing was timed at this configuration and length, the answer at the nearest
    ones that were. disturbed: if no configuration matches, number of matching rows that other programs disturbed."""

    requirements: Requirements
    config: Mapping[str, Any] | None
    choices: tuple[Candidate, ...]
    left_out: Mapping[str, str]
    machines: tuple[str, ...] = ()
    timed_count: int = 0
    measured_count: int = 0
    not_verified: tuple[Candidate, ...] = ()
    quality_notes: tuple[str, ...] = ()
    local_machine: str | None = None
    neighbours: tuple[BetterNeighbour, ...] = ()
    nearest: Recommendation | None = None
    disturbed: int = 0

    question = make_deprecated_alias("question", "requirements")
    place = make_deprecated_alias("place", "config")
    timed = make_deprecated_alias("timed", "timed_count")
    measured = make_deprecated_alias("measured", "measured_count")
    here = make_deprecated_alias("here", "local_machine")

    @property
    def best(self) -> tuple[Candidate, ...]:
        """The mechanisms of rank 1."""
        return tuple(choice for choice in self.choices if choice.rank == 1)


def recommend(
    data: RecommendationData, requirements: Requirements, *, local_machine: str | None = None
) -> Recommendation:
    """Recommend mechanisms for these requirements.

    local_machine: this machine's name; its rows are preferred if they time two mechanisms or more, else those of the
    machine with most timings are used. Raises `UsageError` for a machine without rows, and for a task without scores.
    """
    data.quality.check(requirements)
    if requirements.machine and not any(requirements.machine in name for name in data.machines):
        raise make_unknown_error("machine", requirements.machine, data.machines)
    answer = _choose_answer(data, requirements, local_machine)
    measured = None if answer.timed_count else find_nearest(data.curves_by_config, requirements)
    runnable = replace(data, dtype=requirements.dtype)
    nearest = _choose_answer(runnable, measured, local_machine) if measured else None
    return replace(answer, nearest=nearest) if nearest and nearest.timed_count else answer


def _choose_answer(data: RecommendationData, requirements: Requirements, local_machine: str | None) -> Recommendation:
    """The answer of the matching configuration with most timings."""
    matching = [(config, curves) for config, curves in data.curves_by_config if matches(config, requirements)]
    machines = tuple(dict.fromkeys(str(config["machine"]) for config, _ in matching))
    # of equally good answers, that of the configuration with the longest timed calls
    matching.sort(key=lambda x: -max(point.length for curve in x[1] for point in curve.points))
    answers = [
        _make_recommendation(data, requirements, config, curves)
        for config, curves in matching
        if (requirements.machine or "") in str(config["machine"])
    ]
    local_answers = [
        a for a in answers if a.config and a.config["machine"] == local_machine and a.timed_count >= MIN_MECHANISMS
    ]
    # prefer the configuration with most mechanisms measured at this length, then with most timed
    best = max(local_answers or answers, key=lambda a: (a.measured_count, a.timed_count, len(a.choices)), default=None)
    disturbed = [config for config in data.disturbed if best is None and matches(config, requirements)]
    return replace(
        best or Recommendation(requirements, None, (), {}),
        machines=machines,
        local_machine=local_machine,
        disturbed=sum((requirements.machine or "") in str(config["machine"]) for config in disturbed),
    )


def _make_recommendation(
    data: RecommendationData, requirements: Requirements, config: Mapping[str, Any], curves: Sequence[CostCurve]
) -> Recommendation:
    curves = [curve for curve in curves if _has_required_heads(curve, config, requirements)]
    estimates = [(curve, curve.estimate(requirements.seq_len)) for curve in curves]
    timed = [(curve, cost) for curve, cost in estimates if not isinstance(cost, str)]
    comparison = data.quality.compare([curve for curve, _ in timed] or curves, config, requirements)
    candidates: list[Candidate] = []
    left_out: dict[str, str] = {}
    for curve, cost in estimates:
        figures, failure, unverified = comparison.evaluate(curve)
        reason = find_dtype_refusal(curve.label, data.dtype) or failure
        reason = reason or (cost if isinstance(cost, str) else _describe_exceeded_bound(cost, requirements))
        if reason or isinstance(cost, str):
            left_out[curve.label] = reason
        else:
            candidate = Candidate(
                curve.label,
                cost,
                comparison.describe_error(curve),
                comparison.find(curve, "error"),
                comparison.find(curve, "perplexity"),
                () if unverified else tuple(figures),
                unverified,
                compared=comparison.list_compared(curve),
            )
            candidates.append(candidate)
    ranked = [candidate for candidate in candidates if not candidate.reasons]
    if not requirements.has_quality_bounds:
        ranked, reasons = _keep_pareto_set(ranked)
        left_out |= reasons
    neighbours = find_better_neighbours([_make_competitor(candidate, requirements) for candidate in ranked])
    replaced = tuple(filter(None, neighbours))
    return Recommendation(
        requirements,
        config,
        choices=tuple(_rank_candidates(c for c, better in zip(ranked, neighbours, strict=True) if better is None)),
        left_out=left_out | {better.competitor.label: better.describe() for better in replaced},
        neighbours=replaced,
        timed_count=len(timed),
        measured_count=sum(cost.basis == "measured" for _, cost in timed),
        not_verified=tuple(sorted((c for c in candidates if c.reasons), key=lambda c: (c.cost.latency.value, c.label))),
        quality_notes=tuple(comparison.list_notes()),
    )


def _keep_pareto_set(candidates: Sequence[Candidate]) -> tuple[list[Candidate], dict[str, str]]:
    """The candidates that no other one dominates, and the reasons of the others by label."""
    pairs = [(candidate, _find_dominator(candidate, candidates)) for candidate in candidates]
    front = [candidate for candidate, dominator in pairs if dominator is None]
    labels = {candidate.label for candidate in front}  # those of other key-value heads may be the same
    reasons = {x.label: f"not better than {y.label}, which is faster" for x, y in pairs if y and x.label not in labels}
    return front, reasons


def _find_dominator(candidate: Candidate, others: Sequence[Candidate]) -> Candidate | None:
    """The candidate because of which another one is not in the Pareto set of time and quality (the first figure; lower
    is better), if there is one: significantly better in one of them, and not worse in the other."""
    time, figure = _round_time(candidate), candidate.quality[0]
    for other in others:
        other_time, other_figure = _round_time(other), other.quality[0]
        if is_significantly_better(other_figure, figure) and other_time <= time:
            return other
        if other_figure.value <= figure.value and is_slower(candidate.cost, other.cost):
            return other
    return None


def _make_competitor(candidate: Candidate, requirements: Requirements) -> Competitor:
    costs, state = {"time": candidate.cost.latency.value}, candidate.cost.state
    if requirements.mode == "decode":
        costs["state"] = state.value if state else math.nan
    return Competitor(candidate.label, costs, candidate.compared)


def _has_required_heads(curve: CostCurve, config: Mapping[str, Any], requirements: Requirements) -> bool:
    """Whether a mechanism has the required number of key-value heads. By default any number is accepted for a model
    that is yet to be trained, and the number of query heads for a pretrained one."""
    if requirements.kv_heads is not None:
        return curve.kv_heads == requirements.kv_heads
    is_pretrained = requirements.has_quality_bounds and not requirements.min_accuracy
    return not is_pretrained or curve.kv_heads in (None, config["heads"])


def _describe_exceeded_bound(cost: CostAtLength, requirements: Requirements) -> str:
    """Describe the first bound on memory or time that part of the interval exceeds; "" if there is none."""
    quantity, size = ("state", cost.state) if requirements.mode == "decode" else ("memory", cost.memory)
    bounds = ((quantity, requirements.memory, size, units.size),)
    bounds += (("time", requirements.latency_ms, cost.latency, units.duration),)
    for name, bound, estimate, format_value in bounds:
        if bound is not None and estimate is None:
            return f"{name} not measured"
        if bound is not None and estimate is not None and estimate.ends[1] > bound:
            text = f"{name} {format_value(estimate.value)}"
            if estimate.high is not None:
                text += f" ({format_value(estimate.low)}{units.INTERVAL_DASH}{format_value(estimate.high)})"
            text += describe_counted(cost) if name == "memory" else ""
            return text + (", interpolated" if cost.basis == "interpolated" else "")
    return ""


def describe_counted(cost: CostAtLength) -> str:
    """`` resident; counted peak 12.0 MiB``, where memory is the resident peak of the process; else empty."""
    return f" resident; counted peak {units.size(cost.counted_memory.value)}" if cost.counted_memory else ""


def _rank_candidates(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Rank by latency. Mechanisms not significantly slower than the first of a rank share that rank."""
    first: Candidate | None = None
    ordered = sorted(candidates, key=lambda candidate: (_round_time(candidate), candidate.label))
    for position, candidate in enumerate(ordered, 1):
        if first is None or is_slower(candidate.cost, first.cost):
            first = replace(candidate, rank=position)
        yield replace(candidate, rank=first.rank)


def _round_time(candidate: Candidate) -> float:
    """Its time to five digits: the order of rows and the processor change the seventh of a pooled time."""
    return float(f"{candidate.cost.latency.value:.5g}")


def is_slower(cost: CostAtLength, other: CostAtLength) -> bool:
    """Whether a mechanism is significantly slower: the 95% interval of the ratio of both times excludes 1.

    Times from the same lengths share the drift of the machine, so that their ratio is more precise than either time.
    """
    half_width = math.hypot(cost.half_width, other.half_width)
    if cost.between != other.between:  # not measured together: add the spread between groups
        half_width = math.hypot(half_width, Z_95 * math.sqrt(2) * GROUP_SPREAD)
    return math.log(cost.latency.value / other.latency.value) > half_width
