"""Tiles of bands: overlapping views of keys, the inner windows all alike, clipped ones at both ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from ...patterns import Band, Geometry
from .tiles import View

EDGE_ROWS = 128  # rows of one clipped window: a few larger calls beat many small ones


class Windows(NamedTuple):
    """``times`` windows of ``rows`` queries, each over ``span`` keys; both advance by ``rows``."""

    row: int
    rows: int
    times: int
    col: int
    span: int


def view_band(band: Band, g: Geometry) -> Iterator[tuple[int, View, View]]:
    """Count, queries and keys of the tiles of a band. All windows of one tile are alike, shifted.

    With a step, positions that leave the same rest are sequences of their own, with a plain band each; sequences of
    the same length and alignment have the same windows.
    """
    lo, hi = band.within(g)
    step = band.step
    for (sizes, _), members in groupby(range(min(step, g.n)), key=lambda r: _sequence(r, step, g)):
        rests = list(members)
        row, col = rests[0], (g.start + rests[0]) % step
        for w in windows(-(-lo // step), hi // step, sizes):
            queries, keys = View(row + w.row * step, w.rows, step), View(col + w.col * step, w.span, step)
            across, along = len(rests), w.times  # the same windows of all sequences together, or all of one sequence
            if across >= along:
                for at in range(along):
                    shift = at * w.rows * step
                    yield across, _move(queries, shift, 1), _move(keys, shift, 1)
            else:
                for at in range(across):
                    yield along, _move(queries, at, w.rows * step), _move(keys, at, w.rows * step)


def _sequence(rest: int, step: int, g: Geometry) -> tuple[Geometry, int]:
    """The geometry of the queries ``rest, rest + step, ..`` and their keys, and where the keys' rest wraps around."""
    key = (g.start + rest) % step
    n, m = (max(-(-(size - first) // step), 0) for size, first in ((g.n, rest), (g.m, key)))
    return Geometry(n, m, (g.start + rest - key) // step, g.causal), key - rest


def _move(view: View, by: int, advance: int) -> View:
    return View(view.first + by, view.size, view.step, advance)


def windows(lo: int, hi: int, g: Geometry) -> list[Windows]:
    """Windows of ``lo <= i - j <= hi``: every query in at most one, every pair in its query's."""
    lo = max(lo, 0) if g.causal else lo
    if lo > hi:
        return []
    rows = _rows(hi - lo)
    # inner query indices: the whole window of their block lies inside [0, m)
    first = min(max(hi - g.start, 0), g.n)
    count = max(min(g.n - first, g.m + lo - g.start - first) // rows, 0)
    edge = max(rows, EDGE_ROWS)
    inner = [Windows(first, rows, count, g.start + first - hi, rows + hi - lo)] if count else []
    return [*_edges(0, first, edge, lo, hi, g), *inner, *_edges(first + count * rows, g.n, edge, lo, hi, g)]


def _rows(width: int) -> int:
    """Queries a window: the narrower, the fewer, since each row computes ``rows - 1`` pairs that are not its own."""
    return 32 if width <= 512 else 64 if width <= 1024 else 128


def _edges(first: int, last: int, size: int, lo: int, hi: int, g: Geometry) -> Iterator[Windows]:
    """Single windows for the rows [first, last), their keys clipped to those that exist."""
    for row in range(first, last, size):
        rows = min(size, last - row)
        low, high = max(g.start + row - hi, 0), min(g.start + row + rows - lo, g.m)
        if low < high:
            yield Windows(row, rows, 1, low, high - low)
