"""Patterns as small grids, for drawings: which share of each cell's query-key pairs a pattern keeps. No torch in here.

Queries go down, keys across. Never more than a strip of pairs is held at once, and of very long sequences only some
query rows are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from .facts import Geometry, Pattern
from .pair_counts import possible_pairs

Array: TypeAlias = Any  # numpy's own annotations say more than is known of a pattern's answer
Allows: TypeAlias = Callable[[Any, Any, Geometry], Any]

BUDGET = 1 << 24  # pairs looked at for one grid, about a fifth of a second; longer ones are sampled
STRIP = 1 << 20  # pairs held at once
SHORTEST, LONGEST = 32, 1 << 16
SPARSE = 0.3  # of the pairs: what keeps more looks like a filled square


@dataclass(frozen=True, eq=False)
class PatternGrid:
    """How many pairs of each cell are kept, and how many the cell has. exact: every pair was looked at."""

    geometry: Geometry
    kept: Array
    sizes: Array
    exact: bool

    @property
    def shares(self) -> Array:
        """The kept share of each cell's pairs, those of the future included: from 0 to 1."""
        return self.kept / self.sizes

    @property
    def share(self) -> float:
        """Of all pairs, or of all that causality leaves, how many are kept."""
        g = self.geometry
        possible = possible_pairs(g.n, g.m, g.causal, g.start)
        return min(1.0, float(self.kept.sum() / possible))  # sampled rows may say a little more

    @property
    def direction(self) -> str:
        return "causal" if self.geometry.causal else "bidirectional"


def share_grid(allows: Allows, g: Geometry, *, rows: int, columns: int, budget: int = BUDGET) -> PatternGrid:
    """The pattern over so many rows and columns of cells; fewer where there are fewer queries or keys."""
    down, across = _edges(g.n, rows), _edges(g.m, columns)
    most = max(1, budget // (g.m * (len(down) - 1)))
    queries = [_some(first, end, most) for first, end in pairwise(down)]
    ends = np.cumsum([len(q) for q in queries])
    every = np.concatenate(queries)
    counts = np.empty((len(every), len(across) - 1))
    step = max(1, STRIP // g.m)
    for at in range(0, len(every), step):
        counts[at : at + step] = _count(allows, every[at : at + step], across, g)
    heights = np.diff(down)
    looked_at = np.diff(ends, prepend=0)
    sums = np.add.reduceat(counts, ends - looked_at, axis=0) * (heights / looked_at)[:, None]
    return PatternGrid(g, sums, np.outer(heights, np.diff(across)), len(every) == g.n)


def views(
    pattern: Pattern, *, directions: Sequence[bool], rows: int, columns: int, length: int | None = None
) -> list[PatternGrid]:
    """A grid for each direction (causal or not), all of one length: the one that shows the pattern, or a given one."""
    n = length or fitting_length(pattern, causal=directions[0])
    geometries = [Geometry(n, n, 0, causal) for causal in directions]
    return [share_grid(pattern.allows, g, rows=rows, columns=columns) for g in geometries]


def fitting_length(pattern: Pattern, *, causal: bool) -> int:
    """The shortest power of two that shows the pattern's windows, strides and blocks.

    It is at least four times as long as any of them, and keeps at most three tenths of the pairs, where more length
    would make that so.
    """
    n = SHORTEST
    while n < 4 * _largest(pattern):
        n *= 2
    share = _roughly(pattern, n, causal)
    while n < LONGEST and not 0 < share <= SPARSE:
        longer = _roughly(pattern, 2 * n, causal)
        if 0.8 * share < longer < 1 and share < 1:  # a share of all keys, whatever the length
            break
        n, share = 2 * n, longer
    return n if share < 1 else SHORTEST


def _largest(pattern: Pattern) -> int:
    """The largest size that the facts name. Seeds are no sizes, and what stands for no bound is none."""
    named = [f for fact in pattern.facts if is_dataclass(fact) for f in ((fact, x.name) for x in fields(fact))]
    values = [getattr(fact, name) for fact, name in named if name != "seed"]
    return max((abs(v) for v in values if type(v) is int and abs(v) <= SHORTEST**2), default=0)


def _roughly(pattern: Pattern, n: int, causal: bool) -> float:
    return share_grid(pattern.allows, Geometry(n, n, 0, causal), rows=SHORTEST, columns=1, budget=STRIP).share


def _edges(count: int, cells: int) -> Array:
    cells = min(cells, count)
    return np.arange(cells + 1) * count // cells


def _some(first: int, end: int, most: int) -> Array:
    """At most so many of [first, end), at uneven distances: even ones would fall into step with a pattern's."""
    if end - first <= most:
        return np.arange(first, end)
    shift = np.random.default_rng(first).random(most)
    return first + ((np.arange(most) + shift) * (end - first) / most).astype(int)


def _count(allows: Allows, queries: Array, across: Array, g: Geometry) -> Array:
    """Kept pairs of each of these queries, by columns of cells."""
    i, j = queries[:, None] + g.start, np.arange(g.m)[None, :]
    visible = np.broadcast_to(allows(i, j, g), (len(queries), g.m))
    visible = visible & (j <= i) if g.causal else visible
    return np.add.reduceat(visible, across[:-1], axis=1, dtype=np.int64)
