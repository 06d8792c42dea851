"""Recommend mechanisms: those that satisfy the requirements, fastest first, each with the rows behind it.

Times are compared as ratios at the same lengths of one machine (`pooled_times`), so that drift of the machine cancels.
Mechanisms that are not significantly different from the first of a rank share that rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ... import units
from ...errors import UsageError, make_deprecated_alias, make_unknown_error
from ...results.differences import MAX_DISTURBED_SHARE
from .. import approximation_errors, select
from ..gather import Frame
from .cost_curves import CostAtLength, CostCurve, split_by_config
from .pooled_times import GROUP_SPREAD, Z_95
from .quality import Quality, QualityFigure, find_error
from .requirements import SHAPE, Requirements

MIN_MECHANISMS = 2  # timed on this machine, else the machine with most timings is used


@dataclass(frozen=True)
class RankedMechanism:
    """A mechanism that satisfies all requirements. rank: from 1, shared by mechanisms not significantly different."""

    rank: int
    label: str
    cost: CostAtLength
    quality: tuple[QualityFigure, ...]
    error_text: str

    taken = make_deprecated_alias("taken", "cost")
    loss = make_deprecated_alias("loss", "error_text")


@dataclass(frozen=True)
class Recommendation:
    """A ranking at one configuration. config: None if no matching configuration was timed. left_out: the reason by
    mechanism. machines: those with timings at matching configurations. timed_count, measured_count: number of
    mechanisms with a time at this length, and with one measured at exactly this length, whatever their quality.
    local_machine: this machine's name, if given."""

    requirements: Requirements
    config: Mapping[str, Any] | None
    choices: tuple[RankedMechanism, ...]
    left_out: Mapping[str, str]
    machines: tuple[str, ...]
    timed_count: int = 0
    measured_count: int = 0
    local_machine: str | None = None

    question = make_deprecated_alias("question", "requirements")
    place = make_deprecated_alias("place", "config")
    timed = make_deprecated_alias("timed", "timed_count")
    measured = make_deprecated_alias("measured", "measured_count")
    here = make_deprecated_alias("here", "local_machine")

    @property
    def best(self) -> tuple[RankedMechanism, ...]:
        """The mechanisms of rank 1."""
        return tuple(choice for choice in self.choices if choice.rank == 1)


@dataclass(frozen=True)
class RecommendationData:
    """Rows prepared for many calls of `recommend`. disturbed: number of timed rows left out because other programs ran
    in most of their rounds."""

    curves_by_config: tuple[tuple[Mapping[str, Any], tuple[CostCurve, ...]], ...]
    quality: Quality
    disturbed: int = 0

    @classmethod
    def of(cls, rows: Frame) -> RecommendationData:
        """Prepare rows returned by `gather` or `efficient_attn.load`."""
        for column in {"baseline_kv_heads", "mean_value_error"} - {*rows.columns}:
            rows = rows.assign(**{column: float("nan")})
        timed = rows[rows["relative_error"].notna() | (rows["task"] == "speed")]
        curves_by_config = split_by_config(approximation_errors.add_errors(select.add_labels(timed)))
        disturbed = int((timed["contaminated"].fillna(0) > MAX_DISTURBED_SHARE * timed["rounds"].fillna(1)).sum())
        return cls(tuple((config, tuple(curves)) for config, curves in curves_by_config), Quality(rows), disturbed)


def recommend(
    data: RecommendationData, requirements: Requirements, *, local_machine: str | None = None
) -> Recommendation:
    """Recommend mechanisms for these requirements.

    local_machine: this machine's name; its rows are preferred if they time two mechanisms or more, else those of the
    machine with most timings are used. Raises `UsageError` for a machine without rows, and for a task without scores.
    """
    data.quality.check(requirements)
    machine_names = sorted({str(config["machine"]) for config, _ in data.curves_by_config})
    if requirements.machine and not any(requirements.machine in name for name in machine_names):
        raise make_unknown_error("machine", requirements.machine, machine_names)
    matching = [(config, curves) for config, curves in data.curves_by_config if _matches(config, requirements)]
    machines = tuple(dict.fromkeys(str(config["machine"]) for config, _ in matching))
    answers = [
        _make_recommendation(data, requirements, config, curves, machines)
        for config, curves in matching
        if (requirements.machine or "") in str(config["machine"])
    ]
    local_answers = [
        a for a in answers if a.config and a.config["machine"] == local_machine and a.timed_count >= MIN_MECHANISMS
    ]
    # prefer the configuration with most mechanisms measured at this length, then with most timed
    best = max(local_answers or answers, key=lambda a: (a.measured_count, a.timed_count, len(a.choices)), default=None)
    return replace(best or Recommendation(requirements, None, (), {}, machines), local_machine=local_machine)


def _matches(config: Mapping[str, Any], requirements: Requirements) -> bool:
    """Whether a configuration has all properties that the requirements fix."""
    if config["mode"] != requirements.mode or config["device"] != requirements.device:
        return False
    if requirements.resolved_causal is not None and config["causal"] != requirements.resolved_causal:
        return False
    if config["compiled"] or config["cuda_graph"] or config["cache"] not in (None, "warm"):
        return False  # there are no options for these, so they must not be mixed with the others
    return all(getattr(requirements, name) in (None, config[name]) for name in SHAPE)


_Candidate: TypeAlias = tuple[CostCurve, CostAtLength, tuple[QualityFigure, ...]]


def _make_recommendation(
    data: RecommendationData,
    requirements: Requirements,
    config: Mapping[str, Any],
    curves: Sequence[CostCurve],
    machines: tuple[str, ...],
) -> Recommendation:
    candidates: list[_Candidate] = []
    left_out: dict[str, str] = {}
    timed_count = measured_count = 0
    for curve in curves:
        if not _has_required_heads(curve, config, requirements):
            continue
        cost = curve.estimate(requirements.seq_len)
        figures, reason = data.quality.evaluate(curve, requirements)
        if isinstance(cost, str):
            left_out[curve.label] = reason or cost
            continue
        timed_count += 1
        measured_count += cost.basis == "measured"
        reason = reason or _describe_exceeded_bound(cost, requirements)
        if reason:
            left_out[curve.label] = reason
        else:
            candidates.append((curve, cost, tuple(figures)))
    choices = tuple(_rank_candidates(candidates, requirements))
    return Recommendation(requirements, config, choices, left_out, machines, timed_count, measured_count)


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
    for name, bound, estimate, format_value in (
        (quantity, requirements.memory, size, units.size),
        ("time", requirements.latency_ms, cost.latency, units.duration),
    ):
        if bound is None:
            continue
        if estimate is None:
            return f"{name} not measured"
        if (estimate.high if estimate.high is not None else estimate.value) > bound:
            text = f"{name} {format_value(estimate.value)}"
            if estimate.high is not None:
                text += f" ({format_value(estimate.low)}{units.INTERVAL_DASH}{format_value(estimate.high)})"
            return text + (", interpolated" if cost.basis == "interpolated" else "")
    return ""


def _rank_candidates(candidates: Sequence[_Candidate], requirements: Requirements) -> list[RankedMechanism]:
    """Rank by latency. Mechanisms not significantly slower than the first of a rank share that rank."""
    choices: list[RankedMechanism] = []
    first: CostAtLength | None = None
    rank = 0
    # rounded, so that ties are sorted by name, independent of the order of rows
    ordered = sorted(candidates, key=lambda candidate: (float(f"{candidate[1].latency.value:.9g}"), candidate[0].label))
    for position, (curve, cost, quality) in enumerate(ordered, 1):
        if first is None or is_slower(cost, first):
            rank, first = position, cost
        error = find_error(curve, requirements)
        error_text = "error not measured" if error is None else error.text
        if error is not None and error.value:
            error_text = "; ".join([f"{error_text}, on {error.on}", *error.list_caveats(requirements)])
        choices.append(RankedMechanism(rank, curve.label, cost, quality, error_text))
    return choices


def is_slower(cost: CostAtLength, other: CostAtLength) -> bool:
    """Whether a mechanism is significantly slower: the 95% interval of the ratio of both times excludes 1.

    Times from the same lengths share the drift of the machine, so that their ratio is more precise than either time.
    """
    half_width = math.hypot(cost.half_width, other.half_width)
    if cost.between != other.between:  # not measured together: add the spread between groups
        half_width = math.hypot(half_width, Z_95 * math.sqrt(2) * GROUP_SPREAD)
    return math.log(cost.latency.value / other.latency.value) > half_width


def check_rows(data: RecommendationData) -> None:
    """Raise `UsageError` if no row has a usable time."""
    if not data.curves_by_config:
        reason = "these runs contain no timings; pass runs of suites such as quickstart, promises or decode"
        if data.disturbed:
            reason = f"all {data.disturbed} timed rows were disturbed by other programs; measure on an idle machine"
        raise UsageError(f"recommend: {reason}")
