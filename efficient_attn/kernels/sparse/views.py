"""Tiles that are views: of bands, of columns that many rows see, of rows that see every column, of own blocks. The
windows of a band overlap, by the strides of the tensor itself, so that nothing is copied."""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import torch

from ...patterns import Band, Blocks, Geometry, Keys, Queries
from .tiles import View

EDGE_ROWS = 128  # rows of one clipped window: a few larger calls beat many small ones
TILE_ROWS = 1024  # of one tile: the kernel is at its best with many
TILE_KEYS = 2048  # keys of one tile
MIN_WINDOW_ROWS = 32  # a block of fewer positions shares its tile with its neighbours


class Windows(NamedTuple):
    """``times`` windows of ``rows`` queries, each over ``span`` keys; both advance by ``rows``."""

    row: int
    rows: int
    times: int
    col: int
    span: int


def view_band(band: Band, g: Geometry) -> Iterator[tuple[int, View, View]]:
    """Count, queries and keys of the tiles of a band. All windows of one tile are equal up to a shift. With a step,
    positions with the same remainder form sequences with a plain band each; equal sequences have the same windows."""
    lo, hi = band.within(g)
    step = band.step
    for (sizes, _), members in groupby(range(min(step, g.n)), key=lambda r: _sequence(r, step, g)):
        residues = list(members)
        row, col = residues[0], (g.start + residues[0]) % step
        for w in make_windows(-(-lo // step), hi // step, sizes):
            # the same windows of all sequences together, or all of one sequence: how many, and their distance
            across, along = (len(residues), 1), (w.times, w.rows * step)
            (count, advance), (others, shift) = sorted((across, along), key=lambda side: side[0], reverse=True)
            for offset in range(0, others * shift, shift):
                queries = View(row + w.row * step + offset, w.rows, step, advance)
                yield count, queries, View(col + w.col * step + offset, w.span, step, advance)


def _sequence(residue: int, step: int, g: Geometry) -> tuple[Geometry, int]:
    """The geometry of the queries ``rest, rest + step, ..`` and their keys, and where the keys' rest wraps around."""
    key = (g.start + residue) % step
    n, m = (max(-(-(size - first) // step), 0) for size, first in ((g.n, residue), (g.m, key)))
    return Geometry(n, m, (g.start + residue - key) // step, g.causal), key - residue


def make_windows(lo: int, hi: int, g: Geometry) -> list[Windows]:
    """Windows of ``lo <= i - j <= hi``: every query in at most one, every pair in its query's."""
    lo = max(lo, 0) if g.causal else lo
    if lo > hi:
        return []
    # smaller windows waste less, since each row computes ``rows - 1`` pairs that are not its own
    rows = 32 if hi - lo <= 512 else 64 if hi - lo <= 1024 else 128
    # inner query indices: the whole window of their block lies inside [0, m)
    first = min(max(hi - g.start, 0), g.n)
    count = max(min(g.n - first, g.m + lo - g.start - first) // rows, 0)
    edge = max(rows, EDGE_ROWS)
    if not count:
        return list(_edge_windows(0, g.n, edge, lo, hi, g))
    return [
        *_edge_windows(0, first, edge, lo, hi, g),
        Windows(first, rows, count, g.start + first - hi, rows + hi - lo),
        *_edge_windows(first + count * rows, g.n, edge, lo, hi, g),
    ]


def _edge_windows(first: int, last: int, size: int, lo: int, hi: int, g: Geometry) -> Iterator[Windows]:
    """Single windows for the rows [first, last), with their keys clipped to existing ones."""
    for row in range(first, last, size):
        rows = min(size, last - row)
        low, high = max(g.start + row - hi, 0), min(g.start + row + rows - lo, g.m)
        if low < high:
            yield Windows(row, rows, 1, low, high - low)


def view_keys(fact: Keys, g: Geometry) -> tuple[torch.Tensor | None, Iterator[tuple[int, View, View]]]:
    """The columns to copy together, if they are not contiguous, and count, queries and keys of the tiles over them."""
    if fact.period is None:
        keys = torch.arange(min(fact.first, g.m), min(fact.last, g.m))
    else:
        all_keys = torch.arange(g.m)
        keys = all_keys[fact.allows(all_keys * 0, all_keys, g)]
    return keys if fact.period else None, _view_columns(keys, fact, g)


def _view_columns(keys: torch.Tensor, fact: Keys, g: Geometry) -> Iterator[tuple[int, View, View]]:
    first = 0 if fact.period else fact.first
    size = fact.period * -(-128 // fact.period) if fact.period and g.causal else TILE_ROWS
    row = 0
    while row < g.n:
        # borders on whole periods, where the visible columns change
        end = min(row + size - (g.start + row) % size, g.n)
        visible = int(torch.searchsorted(keys, g.start + end - 1, right=True)) if g.causal else len(keys)
        if visible:
            yield 1, View(row, end - row), View(first, visible)
        row = end


def view_queries(fact: Queries, g: Geometry) -> Iterator[tuple[int, View, View]]:
    """Count, queries and keys of the tiles of rows that see all."""
    top, end = max(-g.start, 0), min(fact.last - g.start, g.n)
    for row in range(top, end, TILE_ROWS):
        rows = min(TILE_ROWS, end - row)
        for col in range(0, min(g.m, g.start + row + rows) if g.causal else g.m, TILE_KEYS):
            yield 1, View(row, rows), View(col, min(TILE_KEYS, g.m - col))


def view_own_blocks(fact: Blocks, g: Geometry) -> Iterator[tuple[int, View, View]]:
    """Count, queries and keys of each query's own block. Several small blocks are one window."""
    size = fact.size * -(-MIN_WINDOW_ROWS // fact.size)
    low, high = max(g.start, 0), g.start + g.n
    begin, stop = low // size, -(-min(high, -(-g.m // size) * size) // size)
    first, end = -(-low // size), min(high, g.m) // size  # blocks all of whose queries and keys exist
    for a in range(begin, stop):
        if not first <= a < end:
            top, last = max(a * size, low), min((a + 1) * size, high)
            yield 1, View(top - g.start, last - top), View(a * size, min((a + 1) * size, g.m) - a * size)
    if end > first:
        # with a causal mask half of a whole block's pairs would be wasted
        rows = min(64 if size <= 512 else 256, size) if g.causal else size
        for row_offset in range(0, size, rows):
            queries = View(first * size - g.start + row_offset, min(rows, size - row_offset), 1, size)
            yield end - first, queries, View(first * size, size, 1, size)
