"""Pareto fronts that know their intervals: what nothing beats, what is beaten, and what cannot be told.

A point is *dominated* where another is better in one respect and not worse in the other beyond what intervals leave
open. Where another's middle is better in both, but an interval overlaps, the two *cannot be told apart*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...results.stats import Estimate
from .decisions import Board, Decision

Standing = Literal["front", "dominated", "untold"]


@dataclass(frozen=True)
class Point:
    """What something costs and what it loses: of both, less is better. A value without ends is exact."""

    label: str
    cost: Estimate
    loss: Estimate


@dataclass(frozen=True)
class Placed:
    """A point and where it stands; beaten_by: who surely beats it, or may."""

    point: Point
    standing: Standing
    beaten_by: tuple[str, ...] = ()


def find_front(points: Sequence[Point]) -> list[Placed]:
    """Where each point stands among all of them, in their order."""
    return [_place(point, points) for point in points]


def _place(point: Point, points: Sequence[Point]) -> Placed:
    surely = tuple(other.label for other in points if dominates(other, point))
    if surely:
        return Placed(point, "dominated", surely)
    maybe = tuple(other.label for other in points if _seems_better(other, point))
    return Placed(point, "untold" if maybe else "front", maybe)


def dominates(one: Point, other: Point) -> bool:
    """Whether one is surely better in a respect, and in the other surely better too, or exactly as good."""
    ranks = (_compare(one.cost, other.cost), _compare(one.loss, other.loss))
    return all(rank in (-1, 0) for rank in ranks) and -1 in ranks


def _compare(one: Estimate, other: Estimate) -> int | None:
    """-1 where one is surely less, 1 where it is surely more, 0 where both are exact and equal, None where open."""
    (low, high), (other_low, other_high) = _ends(one), _ends(other)
    if high < other_low:
        return -1
    if low > other_high:
        return 1
    return 0 if low == high == other_low == other_high else None


def _ends(found: Estimate) -> tuple[float, float]:
    return (
        found.value if found.low is None else found.low,
        found.value if found.high is None else found.high,
    )


def _seems_better(one: Point, other: Point) -> bool:
    ranks = one.cost.value - other.cost.value, one.loss.value - other.loss.value
    return max(ranks) <= 0 and min(ranks) < 0


def list_points(board: Board, length: int, cost: Literal["time", "memory", "state"]) -> list[Point]:
    """A board's mechanisms with a loss, against a cost over the baseline's; the baseline itself stands at 1 and 0.

    time: at this length, with its interval. memory, state: those of the decisions, which have none.
    """
    found = [(decision, _find_cost(decision, length, cost)) for decision in board.decisions]
    points = [
        Point(d.label, each, Estimate(d.error, *(d.error_ends or (None, None))))
        for d, each in found
        if each is not None and d.error is not None
    ]
    return [Point(board.baseline, Estimate(1.0), Estimate(0.0)), *points] if points else []


def _find_cost(decision: Decision, length: int, cost: str) -> Estimate | None:
    shares: Mapping[str, float | None] = {"memory": decision.memory, "state": decision.state_share}
    if cost in shares:
        share = shares[cost]
        return None if share is None else Estimate(share)
    speedup = decision.speedups.get(length)
    if speedup is None:
        return None
    ends = (None if end is None else 1 / end for end in (speedup.high, speedup.low))
    return Estimate(1 / speedup.value, *ends)
