"""Facts, and patterns as tuples of them, joined by ``|``.

A fact says whether query position i may see key position j, with operators only, so that tensors, arrays and numbers
work; and it names the key blocks that a range of queries may touch, without evaluating N x M pairs. Causality and
padding belong to the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..errors import UsageError
from .draws import draw


class Geometry(NamedTuple):
    """One call's sizes: n queries from position ``start`` on, m keys."""

    n: int
    m: int
    start: int
    causal: bool


class Reach(NamedTuple):
    """The most keys that a causal query can see: the first ``prefix``, and the last ``back + 1`` up to its own."""

    back: int
    prefix: int = 0


@runtime_checkable
class Fact(Protocol):
    """One rule of a pattern."""

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        """Whether query position i may see key position j; works elementwise on anything with operators."""

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        """Numbers of the key blocks of ``size`` that queries at positions [first, last] may touch (more is allowed)."""
        ...

    @property
    def reach(self) -> Reach | None:
        """The most keys that causal queries can see; None if unbounded, or if it depends on more than distances."""


class _Joinable:
    """``|`` joins facts and patterns into one pattern, in which a pair counts once however many facts allow it."""

    def __or__(self, other: Any) -> Pattern:
        return Pattern(as_pattern(self).facts + as_pattern(other).facts)


@dataclass(frozen=True)
class Band(_Joinable):
    """Keys at distances ``lo <= i - j <= hi`` that are multiples of ``step``: windows, dilation, strides.

    None for lo or hi: no bound on that side.
    """

    lo: int | None
    hi: int | None
    step: int = 1

    def __post_init__(self) -> None:
        if (self.lo is not None and self.hi is not None and self.lo > self.hi) or self.step < 1:
            raise UsageError(f"Band: needs lo <= hi and step >= 1, got lo={self.lo}, hi={self.hi}, step={self.step}")

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        distance = i - j
        visible = distance == distance if self.lo is None else distance >= self.lo
        visible = visible if self.hi is None else visible & (distance <= self.hi)
        return visible if self.step == 1 else visible & (distance % self.step == 0)

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        lo, hi = self.within(g)
        if self.step <= size + last - first:  # nearly every block in between is touched
            return range((first - hi) // size, (last - lo) // size + 1)
        distances = range(-(-lo // self.step) * self.step, hi + 1, self.step)
        return (b for d in distances for b in range((first - d) // size, (last - d) // size + 1))

    def within(self, g: Geometry) -> tuple[int, int]:
        """Bounds of the distance that are numbers, and no wider than the geometry."""
        min_distance, max_distance = (0 if g.causal else g.start - g.m + 1), g.start + g.n - 1
        lo, hi = min_distance if self.lo is None else self.lo, max_distance if self.hi is None else self.hi
        return max(lo, min_distance), min(hi, max_distance)

    @property
    def reach(self) -> Reach | None:
        return None if self.hi is None else Reach(max(self.hi, 0))


@dataclass(frozen=True)
class Keys(_Joinable):
    """Key columns that every query sees: ``first <= j < last``, or the same of ``j % period``: sinks, summaries."""

    first: int
    last: int
    period: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last or (self.period is not None and self.last > self.period):
            raise UsageError(f"Keys: needs 0 <= first < last <= period, got {self.first}, {self.last}, {self.period}")

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        column = j if self.period is None else j % self.period
        return (column >= self.first) & (column < self.last) & (i == i)  # the last term gives the result i's shape

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        starts = range(self.first, g.m, self.period) if self.period else range(self.first, min(g.m, self.first + 1))
        width = self.last - self.first
        return (b for s in starts for b in range(s // size, (s + width - 1) // size + 1))

    @property
    def reach(self) -> Reach | None:
        return Reach(0, self.last) if self.period is None else None


@dataclass(frozen=True)
class Queries(_Joinable):
    """Query rows that see every key: positions ``0 <= i < last``. Global tokens."""

    last: int

    def __post_init__(self) -> None:
        if self.last < 1:
            raise UsageError(f"Queries: needs last >= 1, got {self.last}")

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        return (i >= 0) & (i < self.last) & (j == j)

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        return range(-(-g.m // size)) if last >= 0 and first < self.last else ()

    @property
    def reach(self) -> Reach | None:
        return Reach(0, self.last)  # a causal row here is one of the first rows itself


@dataclass(frozen=True)
class Blocks(_Joinable):
    """The query's own block of ``size`` positions, and ``count`` random ones for it.

    Query block a draws distinct key blocks, at most as many as there are: from [0, a] if causal, from all otherwise.
    The draw is a function of the seed, a and the number of blocks, the same for all rows and heads. Negative positions
    have no block.
    """

    size: int
    count: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.count < 0:
            raise UsageError(f"Blocks: needs size >= 1 and count >= 0, got {self.size} and {self.count}")

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        a, b = i // self.size, j // self.size
        visible = a == b
        for choice in self.draws(a, g):
            visible = visible | (choice == b)
        return visible & (i >= 0)

    def draws(self, a: Any, g: Geometry) -> list[Any]:
        """The blocks drawn for query blocks ``a``: values of its kind, at most ``count``, -1 where none is left."""
        a = a * (a >= 0)
        n_candidates = a + 1 if g.causal else a * 0 + -(-g.m // self.size)
        n_blocks = -(-max(g.m, g.start + g.n, 1) // self.size)  # a count beyond the number of blocks changes nothing
        return draw(self.seed, a, n_candidates, min(self.count, n_blocks))

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        row_blocks = range(max(first, 0) // self.size, last // self.size + 1)
        key_blocks = {b for a in row_blocks for b in (a, *self.draws(a, g)) if b >= 0}
        return (c for b in key_blocks for c in range(b * self.size // size, ((b + 1) * self.size - 1) // size + 1))

    @property
    def reach(self) -> Reach | None:
        return None  # the beginning of a block would have to be stored as well


@dataclass(frozen=True)
class Where(_Joinable):
    """Any other rule, ``fn(i, j)`` in operators on positions. All N x M pairs are evaluated, once a geometry."""

    fn: Callable[[Any, Any], Any]

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        return self.fn(i, j)

    def blocks(self, first: int, last: int, size: int, g: Geometry) -> Iterable[int]:
        import numpy as np

        i, j = np.arange(first, last + 1)[:, None], np.arange(g.m)[None, :]
        return (b for b in range(-(-g.m // size)) if np.any(self.fn(i, j[:, b * size : (b + 1) * size])))

    @property
    def reach(self) -> Reach | None:
        return None


@dataclass(frozen=True)
class Pattern(_Joinable):
    """A union of facts."""

    facts: tuple[Fact, ...]

    def allows(self, i: Any, j: Any, g: Geometry) -> Any:
        """Whether any fact allows the pair."""
        allowed = self.facts[0].allows(i, j, g)
        for fact in self.facts[1:]:
            allowed = allowed | fact.allows(i, j, g)
        return allowed

    def key_blocks(self, first: int, last: int, size: int, g: Geometry) -> list[int]:
        """Sorted numbers of the key blocks that queries at positions [first, last] may touch, causality included."""
        end = min(g.m - 1, last) if g.causal else g.m - 1
        touched = {b for fact in self.facts for b in fact.blocks(first, last, size, g)}
        return sorted(b for b in touched if 0 <= b <= end // size) if end >= 0 else []

    @property
    def reach(self) -> Reach | None:
        """The most keys that a causal query can see; None if a fact is not bounded."""
        reaches = [fact.reach for fact in self.facts]
        if any(r is None for r in reaches):
            return None
        return Reach(max(r.back for r in reaches if r), max(r.prefix for r in reaches if r))


def as_pattern(value: Fact | Pattern | Any) -> Pattern:
    """A fact or a pattern as a pattern. Raises `UsageError` for anything else."""
    if isinstance(value, Pattern):
        return value
    if isinstance(value, Fact):
        return Pattern((value,))
    raise UsageError(f"a pattern consists of facts joined by |, got {value!r}")
