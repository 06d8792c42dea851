"""Sparse patterns as values: a tuple of facts joined by ``|``.

A fact says whether query position i may see key position j, with operators only, so that tensors, arrays and plain
numbers all fit; and it names the key blocks that a run of queries may touch, without looking at N x M pairs.
Causality and padding are the mask's business, never the pattern's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from .errors import UsageError


class Geometry(NamedTuple):
    """One call's sizes: n queries from position ``start`` on, m keys."""

    n: int
    m: int
    start: int
    causal: bool


@runtime_checkable
class Fact(Protocol):
    """One rule of a pattern."""

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        """Whether query position i may see key position j; works elementwise on anything with operators."""
        ...

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        """Numbers of the key blocks of ``size`` that queries at positions [first, last] may touch (more is allowed)."""
        ...

    @property
    def reach(self) -> int | None:
        """How far back a causal query may look; None when there is no bound."""
        ...


class _Joins:
    """``|`` joins facts and patterns into one pattern, in which a pair counts once however many facts allow it."""

    def __or__(self, other: Any) -> Pattern:
        return Pattern(as_pattern(self).facts + as_pattern(other).facts)


@dataclass(frozen=True)
class Band(_Joins):
    """Keys at distances ``lo <= i - j <= hi`` that are multiples of ``step``: windows, dilation, strides."""

    lo: int
    hi: int
    step: int = 1

    def __post_init__(self) -> None:
        if self.lo > self.hi or self.step < 1:
            raise UsageError(f"Band: needs lo <= hi and step >= 1, got lo={self.lo}, hi={self.hi}, step={self.step}")

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        distance = i - j
        near = (distance >= self.lo) & (distance <= self.hi)
        return near if self.step == 1 else near & (distance % self.step == 0)

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        if self.step <= size + last - first:  # every block on the way is touched, or nearly
            return range((first - self.hi) // size, (last - self.lo) // size + 1)
        distances = range(-(-self.lo // self.step) * self.step, self.hi + 1, self.step)
        return (b for d in distances for b in range((first - d) // size, (last - d) // size + 1))

    @property
    def reach(self) -> int | None:
        return max(self.hi, 0)


@dataclass(frozen=True)
class Keys(_Joins):
    """Key columns that every query sees: ``first <= j < last``, or the same of ``j % period``: sinks, summaries."""

    first: int
    last: int
    period: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last or (self.period is not None and self.last > self.period):
            raise UsageError(f"Keys: needs 0 <= first < last <= period, got {self.first}, {self.last}, {self.period}")

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        column = j if self.period is None else j % self.period
        return (column >= self.first) & (column < self.last) & (i == i)  # the last term gives the answer i's shape

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        starts = range(self.first, g.m, self.period) if self.period else range(self.first, min(g.m, self.first + 1))
        width = self.last - self.first
        return (b for s in starts for b in range(s // size, (s + width - 1) // size + 1))

    @property
    def reach(self) -> int | None:
        return None


@dataclass(frozen=True)
class Where(_Joins):
    """Any other rule, ``fn(i, j)`` in operators on positions. Planned by scanning all N x M pairs, once a geometry."""

    fn: Callable[[Any, Any], Any]

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        return self.fn(i, j)

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        return (b for b in range(-(-g.m // size)) if self._touches(first, last, b * size, min((b + 1) * size, g.m)))

    def _touches(self, first: int, last: int, low: int, high: int) -> bool:
        import numpy as np

        return bool(np.any(self.fn(np.arange(first, last + 1)[:, None], np.arange(low, high)[None, :])))

    @property
    def reach(self) -> int | None:
        return None


@dataclass(frozen=True)
class Pattern(_Joins):
    """A union of facts."""

    facts: tuple[Fact, ...]

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        """Whether any fact allows the pair."""
        answer = self.facts[0].allows(i, j, g)
        for fact in self.facts[1:]:
            answer = answer | fact.allows(i, j, g)
        return answer

    def key_blocks(self, first: int, last: int, size: int, g: Geometry) -> list[int]:
        """Sorted numbers of the key blocks that queries at positions [first, last] may touch, causality included."""
        end = min(g.m - 1, last) if g.causal else g.m - 1
        touched = {b for fact in self.facts for b in fact.blocks(first, last, size, g)}
        return sorted(b for b in touched if 0 <= b <= end // size) if end >= 0 else []

    @property
    def reach(self) -> int | None:
        """How far back a causal query looks, when every fact is bounded."""
        reaches = [fact.reach for fact in self.facts]
        return None if None in reaches else max(r for r in reaches if r is not None)

    @property
    def window(self) -> Band | None:
        """The pattern as one contiguous window, if that is what it is."""
        band = self.facts[0]
        return band if len(self.facts) == 1 and isinstance(band, Band) and band.step == 1 else None


def as_pattern(value: Fact | Pattern | Any) -> Pattern:
    """A fact or a pattern as a pattern; `UsageError` for anything else."""
    if isinstance(value, Pattern):
        return value
    if isinstance(value, Fact):
        return Pattern((value,))
    raise UsageError(f"a pattern is made of facts joined by |, got {value!r}")


def sliding_window(window: int) -> Pattern:
    """Every key within ``window`` positions: abs(i - j) <= window."""
    if isinstance(window, bool) or window < 0:
        raise UsageError(f"window must be 0 or more, not {window!r}")
    return Pattern((Band(-window, window),))
