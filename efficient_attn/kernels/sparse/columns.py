"""Tiles of columns that many rows see, of rows that see every column, and of each query's own block."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...patterns import Blocks, Geometry, Keys, Queries
from .tiles import View

ROWS = 1024  # of one tile: the kernel is at its best with many
SPAN = 2048  # keys of one tile
SHORT = 32  # a block of fewer positions shares its tile with its neighbours


def view_keys(fact: Keys, g: Geometry) -> tuple[torch.Tensor | None, Iterator[tuple[int, View, View]]]:
    """The columns to copy together, if they are apart, and count, queries and keys of the tiles over them."""
    if fact.period is None:
        keys = torch.arange(min(fact.first, g.m), min(fact.last, g.m))
    else:
        every = torch.arange(g.m)
        keys = every[fact.allows(every * 0, every, g)]
    return keys if fact.period else None, _view_columns(keys, fact, g)


def _view_columns(keys: torch.Tensor, fact: Keys, g: Geometry) -> Iterator[tuple[int, View, View]]:
    first = 0 if fact.period else fact.first
    size = fact.period * -(-128 // fact.period) if fact.period and g.causal else ROWS
    row = 0
    while row < g.n:
        end = min(row + size - (g.start + row) % size, g.n)  # borders on whole periods, where what is seen changes
        seen = int(torch.searchsorted(keys, g.start + end - 1, right=True)) if g.causal else len(keys)
        if seen:
            yield 1, View(row, end - row), View(first, seen)
        row = end


def view_queries(fact: Queries, g: Geometry) -> Iterator[tuple[int, View, View]]:
    """Count, queries and keys of the tiles of rows that see all."""
    top, end = max(-g.start, 0), min(fact.last - g.start, g.n)
    for row in range(top, end, ROWS):
        rows = min(ROWS, end - row)
        for col in range(0, min(g.m, g.start + row + rows) if g.causal else g.m, SPAN):
            yield 1, View(row, rows), View(col, min(SPAN, g.m - col))


def view_own_blocks(fact: Blocks, g: Geometry) -> Iterator[tuple[int, View, View]]:
    """Count, queries and keys of each query's own block. Several small blocks are one window."""
    size = fact.size * -(-SHORT // fact.size)
    low, high = max(g.start, 0), g.start + g.n
    begin, stop = low // size, -(-min(high, -(-g.m // size) * size) // size)
    first, end = -(-low // size), min(high, g.m) // size  # blocks all of whose queries and keys exist
    for a in range(begin, stop):
        if not first <= a < end:
            top, last = max(a * size, low), min((a + 1) * size, high)
            yield 1, View(top - g.start, last - top), View(a * size, min((a + 1) * size, g.m) - a * size)
    if end > first:
        rows = min(_part_of(size), size) if g.causal else size
        for at in range(0, size, rows):
            queries = View(first * size - g.start + at, min(rows, size - at), 1, size)
            yield end - first, queries, View(first * size, size, 1, size)


def _part_of(size: int) -> int:
    """Rows of a part of a block: under a causal mask half of a whole block's pairs would be computed for nothing."""
    return 64 if size <= 512 else 256
