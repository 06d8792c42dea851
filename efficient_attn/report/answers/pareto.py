"""Pareto fronts of points with confidence intervals.

A point is *dominated* if another is significantly better in cost or error, and in the other significantly better or
exactly equal. If another's estimates are better but an interval overlaps, its status is *unclear*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...results.stats import Estimate
from .decision_table import Decision, DecisionTable

ParetoStatus = Literal["front", "dominated", "unclear"]


@dataclass(frozen=True)
class ParetoPoint:
    """Cost and approximation error of a mechanism. Lower is better; a value without an interval is exact."""

    label: str
    cost: Estimate
    error: Estimate


@dataclass(frozen=True)
class RankedPoint:
    """A point and its status. beaten_by: labels of the points that dominate it, or may."""

    point: ParetoPoint
    status: ParetoStatus
    beaten_by: tuple[str, ...] = ()


def classify_points(points: Sequence[ParetoPoint]) -> list[RankedPoint]:
    """Return the status of each point, in the same order."""
    return [_classify(point, points) for point in points]


def _classify(point: ParetoPoint, points: Sequence[ParetoPoint]) -> RankedPoint:
    dominating = tuple(other.label for other in points if dominates(other, point))
    if dominating:
        return RankedPoint(point, "dominated", dominating)
    possibly_dominating = tuple(other.label for other in points if _seems_better(other, point))
    return RankedPoint(point, "unclear" if possibly_dominating else "front", possibly_dominating)


def dominates(point: ParetoPoint, other: ParetoPoint) -> bool:
    """Whether a point is significantly better in one dimension, and better or exactly equal in the other."""
    ranks = (_compare(point.cost, other.cost), _compare(point.error, other.error))
    return all(rank in (-1, 0) for rank in ranks) and -1 in ranks


def _compare(value: Estimate, other: Estimate) -> int | None:
    """-1 if significantly less, 1 if significantly greater, 0 if both are exact and equal, None if undecided."""
    (low, high), (other_low, other_high) = value.ends, other.ends
    if high < other_low:
        return -1
    if low > other_high:
        return 1
    return 0 if low == high == other_low == other_high else None


def _seems_better(point: ParetoPoint, other: ParetoPoint) -> bool:
    ranks = point.cost.value - other.cost.value, point.error.value - other.error.value
    return max(ranks) <= 0 and min(ranks) < 0


def list_points(table: DecisionTable, length: int, cost: Literal["time", "memory", "state"]) -> list[ParetoPoint]:
    """Return the points of mechanisms with a known error; the cost is relative to the baseline, which is at (1, 0).

    Time is that at this length, with its interval; memory and state are those of the decisions, without intervals.
    """
    costs = [(decision, _find_cost(decision, length, cost)) for decision in table.decisions]
    points = [
        ParetoPoint(d.label, estimate, Estimate(d.error, *(d.error_interval or (None, None))))
        for d, estimate in costs
        if estimate is not None and d.error is not None
    ]
    return [ParetoPoint(table.baseline, Estimate(1.0), Estimate(0.0)), *points] if points else []


def _find_cost(decision: Decision, length: int, cost: str) -> Estimate | None:
    if cost != "time":
        share = decision.memory_ratio if cost == "memory" else decision.state_share
        return None if share is None else Estimate(share)
    speedup = decision.speedups.get(length)
    if speedup is None:
        return None
    ends = (None if end is None else 1 / end for end in (speedup.high, speedup.low))
    return Estimate(1 / speedup.value, *ends)
