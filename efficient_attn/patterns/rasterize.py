"""Patterns as small grids, for drawings: the share of each cell's query-key pairs that a pattern keeps, without torch.

Queries go down, keys across. At most a strip of pairs exists at a time; of very long sequences some rows are sampled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from .facts import Geometry, Pattern
from .pair_counts import count_possible_pairs

GridArray: TypeAlias = Any  # numpy's annotations are narrower than a pattern's results
PairRule: TypeAlias = Callable[[Any, Any, Geometry], Any]

PAIR_BUDGET = 1 << 24  # pairs evaluated for one grid, about a fifth of a second; longer sequences are sampled
STRIP_PAIRS = 1 << 20  # pairs that exist at a time
MIN_LENGTH, MAX_LENGTH = 32, 1 << 16
MAX_SHARE = 0.3  # of the pairs: larger shares look like a filled square


@dataclass(frozen=True, eq=False)
class PatternGrid:
    """The number of kept pairs of each cell, and of all its pairs. exact: every pair was evaluated."""

    geometry: Geometry
    allowed_pairs: GridArray
    cell_pairs: GridArray
    exact: bool

    @property
    def shares(self) -> GridArray:
        """The share of each cell's pairs that is kept, future pairs included: from 0 to 1."""
        return self.allowed_pairs / self.cell_pairs

    @property
    def share(self) -> float:
        """The kept share of all pairs, or of all causal pairs."""
        g = self.geometry
        pair_count = count_possible_pairs(g.n, g.m, g.causal, g.start)
        return min(1.0, float(self.allowed_pairs.sum() / pair_count))  # sampled rows may exceed it slightly

    @property
    def direction(self) -> str:
        """``causal`` or ``bidirectional``."""
        return "causal" if self.geometry.causal else "bidirectional"


def compute_share_grid(
    allows: PairRule, g: Geometry, *, rows: int, columns: int, budget: int = PAIR_BUDGET
) -> PatternGrid:
    """Compute a grid of rows and columns of cells, at most one for each query and key."""
    row_edges, column_edges = _compute_edges(g.n, rows), _compute_edges(g.m, columns)
    max_rows = max(1, budget // (g.m * (len(row_edges) - 1)))
    queries = [_sample_rows(first, end, max_rows) for first, end in pairwise(row_edges)]
    ends = np.cumsum([len(q) for q in queries])
    query_rows = np.concatenate(queries)
    counts = np.empty((len(query_rows), len(column_edges) - 1))
    step = max(1, STRIP_PAIRS // g.m)
    for start in range(0, len(query_rows), step):
        counts[start : start + step] = _count_pairs(allows, query_rows[start : start + step], column_edges, g)
    heights = np.diff(row_edges)
    sampled_rows = np.diff(ends, prepend=0)
    sums = np.add.reduceat(counts, ends - sampled_rows, axis=0) * (heights / sampled_rows)[:, None]
    return PatternGrid(g, sums, np.outer(heights, np.diff(column_edges)), len(query_rows) == g.n)


def compute_share_grids(
    pattern: Pattern, *, directions: Sequence[bool], rows: int, columns: int, length: int | None = None
) -> list[PatternGrid]:
    """A grid for each direction (causal or not), all of one length: one that shows the pattern, or a given one."""
    n = length or choose_length(pattern, causal=directions[0])
    geometries = [Geometry(n, n, 0, causal) for causal in directions]
    return [compute_share_grid(pattern.allows, g, rows=rows, columns=columns) for g in geometries]


def choose_length(pattern: Pattern, *, causal: bool) -> int:
    """The shortest power of two that shows the pattern's windows, strides and blocks. It is at least four times as long
    as any of them, and keeps at most three tenths of the pairs, if more length achieves that."""
    n = MIN_LENGTH
    while n < 4 * _find_largest_size(pattern):
        n *= 2
    share = _estimate_share(pattern, n, causal)
    while n < MAX_LENGTH and not 0 < share <= MAX_SHARE:
        longer = _estimate_share(pattern, 2 * n, causal)
        if 0.8 * share < longer < 1 and share < 1:  # a share of all keys, whatever the length
            break
        n, share = 2 * n, longer
    return n if share < 1 else MIN_LENGTH


def _find_largest_size(pattern: Pattern) -> int:
    """The largest size that the facts name, without seeds and unbounded values."""
    fact_fields = [f for fact in pattern.facts if is_dataclass(fact) for f in ((fact, x.name) for x in fields(fact))]
    values = [getattr(fact, name) for fact, name in fact_fields if name != "seed"]
    return max((abs(v) for v in values if type(v) is int and abs(v) <= MIN_LENGTH**2), default=0)


def _estimate_share(pattern: Pattern, n: int, causal: bool) -> float:
    g = Geometry(n, n, 0, causal)
    return compute_share_grid(pattern.allows, g, rows=MIN_LENGTH, columns=1, budget=STRIP_PAIRS).share


def _compute_edges(count: int, cells: int) -> GridArray:
    cells = min(cells, count)
    return np.arange(cells + 1) * count // cells


def _sample_rows(first: int, end: int, max_rows: int) -> GridArray:
    """At most so many of [first, end), at uneven distances: even ones could coincide with a stride."""
    if end - first <= max_rows:
        return np.arange(first, end)
    shift = np.random.default_rng(first).random(max_rows)
    return first + ((np.arange(max_rows) + shift) * (end - first) / max_rows).astype(int)


def _count_pairs(allows: PairRule, queries: GridArray, column_edges: GridArray, g: Geometry) -> GridArray:
    i, j = queries[:, None] + g.start, np.arange(g.m)[None, :]
    visible = np.broadcast_to(allows(i, j, g), (len(queries), g.m))
    visible = visible & (j <= i) if g.causal else visible
    return np.add.reduceat(visible, column_edges[:-1], axis=1, dtype=np.int64)
