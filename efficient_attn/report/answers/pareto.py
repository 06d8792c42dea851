"""Pareto fronts that know their intervals: what nothing beats, what is beaten, and what cannot be told.

A point is *dominated* where another is better in one respect and not worse in the other beyond what intervals leave
open. Where another's middle is better in both, but an interval overlaps, the two *cannot be told apart*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...results.stats import Estimate
from .decision_table import Decision, DecisionTable

ParetoStatus = Literal["front", "dominated", "untold"]


@dataclass(frozen=True)
class ParetoPoint:
    """What something costs and what it loses: of both, less is better. A value without ends is exact."""

    label: str
    cost: Estimate
    error: Estimate


@dataclass(frozen=True)
class RankedPoint:
    """A point and where it stands; beaten_by: who surely beats it, or may."""

    point: ParetoPoint
    status: ParetoStatus
    beaten_by: tuple[str, ...] = ()


def classify_points(points: Sequence[ParetoPoint]) -> list[RankedPoint]:
    """Where each point stands among all of them, in their order."""
    return [_classify(point, points) for point in points]


def _classify(point: ParetoPoint, points: Sequence[ParetoPoint]) -> RankedPoint:
    dominating = tuple(other.label for other in points if dominates(other, point))
    if dominating:
        return RankedPoint(point, "dominated", dominating)
    possibly_dominating = tuple(other.label for other in points if _seems_better(other, point))
    return RankedPoint(point, "untold" if possibly_dominating else "front", possibly_dominating)


def dominates(point: ParetoPoint, other: ParetoPoint) -> bool:
    """Whether one is surely better in a respect, and in the other surely better too, or exactly as good."""
    ranks = (_compare(point.cost, other.cost), _compare(point.error, other.error))
    return all(rank in (-1, 0) for rank in ranks) and -1 in ranks


def _compare(value: Estimate, other: Estimate) -> int | None:
    """-1 where one is surely less, 1 where it is surely more, 0 where both are exact and equal, None where open."""
    (low, high), (other_low, other_high) = _get_interval(value), _get_interval(other)
    if high < other_low:
        return -1
    if low > other_high:
        return 1
    return 0 if low == high == other_low == other_high else None


def _get_interval(estimate: Estimate) -> tuple[float, float]:
    return (
        estimate.value if estimate.low is None else estimate.low,
        estimate.value if estimate.high is None else estimate.high,
    )


def _seems_better(point: ParetoPoint, other: ParetoPoint) -> bool:
    ranks = point.cost.value - other.cost.value, point.error.value - other.error.value
    return max(ranks) <= 0 and min(ranks) < 0


def list_points(table: DecisionTable, length: int, cost: Literal["time", "memory", "state"]) -> list[ParetoPoint]:
    """A board's mechanisms with a loss, against a cost over the baseline's; the baseline itself stands at 1 and 0.

    time: at this length, with its interval. memory, state: those of the decisions, which have none.
    """
    costs = [(decision, _find_cost(decision, length, cost)) for decision in table.decisions]
    points = [
        ParetoPoint(d.label, estimate, Estimate(d.error, *(d.error_interval or (None, None))))
        for d, estimate in costs
        if estimate is not None and d.error is not None
    ]
    return [ParetoPoint(table.baseline, Estimate(1.0), Estimate(0.0)), *points] if points else []


def _find_cost(decision: Decision, length: int, cost: str) -> Estimate | None:
    shares: Mapping[str, float | None] = {"memory": decision.memory_ratio, "state": decision.state_share}
    if cost in shares:
        share = shares[cost]
        return None if share is None else Estimate(share)
    speedup = decision.speedups.get(length)
    if speedup is None:
        return None
    ends = (None if end is None else 1 / end for end in (speedup.high, speedup.low))
    return Estimate(1 / speedup.value, *ends)
