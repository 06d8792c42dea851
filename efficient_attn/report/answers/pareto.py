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
    ranked = []
    for point in points:
        dominating = tuple(other.label for other in points if dominates(other, point))
        better = dominating or tuple(other.label for other in points if _seems_better(other, point))
        status: ParetoStatus = "dominated" if dominating else "unclear" if better else "front"
        ranked.append(RankedPoint(point, status, better))
    return ranked


def dominates(point: ParetoPoint, other: ParetoPoint) -> bool:
    """Whether a point is significantly better in one dimension, and better or exactly equal in the other."""
    ends = [(a.ends, b.ends) for a, b in ((point.cost, other.cost), (point.error, other.error))]
    better = [high < other_low for (_, high), (other_low, _) in ends]
    equal = [len({*a, *b}) == 1 for a, b in ends]
    return any(better) and all(any(pair) for pair in zip(better, equal, strict=True))


def _seems_better(point: ParetoPoint, other: ParetoPoint) -> bool:
    ranks = point.cost.value - other.cost.value, point.error.value - other.error.value
    return max(ranks) <= 0 and min(ranks) < 0


def list_points(table: DecisionTable, cost: Literal["time", "memory", "state"]) -> list[ParetoPoint]:
    """Return the points of mechanisms with a known error; the cost is relative to the baseline, which is at (1, 0).

    Time is that at the table's longest length, with its interval; memory and state are without intervals.
    """
    costs = [(decision, _find_cost(decision, table.lengths[-1], cost)) for decision in table.decisions]
    points = [ParetoPoint(d.label, estimate, d.error) for d, estimate in costs if estimate and d.error]
    return [ParetoPoint(table.baseline, Estimate(1.0), Estimate(0.0)), *points] if points else []


def _find_cost(decision: Decision, length: int, cost: str) -> Estimate | None:
    if cost != "time":
        share = decision.memory_ratio if cost == "memory" else decision.state_share
        return None if share is None else Estimate(share)
    speedup = decision.speedups.get(length)
    return speedup and Estimate(1 / speedup.value, *(end and 1 / end for end in (speedup.high, speedup.low)))
