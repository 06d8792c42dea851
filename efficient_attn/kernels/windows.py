"""Plans for one contiguous window: overlapping views of keys, one small mask for all inner windows, edges apart."""

from __future__ import annotations

from functools import lru_cache

from ..patterns import Band, Geometry
from .tiles import Tile

EDGE_ROWS = 128  # rows of one edge tile: a few larger calls beat many small ones


@lru_cache(maxsize=256)
def window_tiles(band: Band, g: Geometry) -> tuple[Tile, ...]:
    """Tiles of ``band.lo <= i - j <= band.hi``: inner windows whose keys all exist, and clipped ones at both ends."""
    lo, hi = max(band.lo, 0) if g.causal else band.lo, band.hi
    if lo > hi:
        return ()
    rows = _rows(hi - lo)
    # inner query indices: the whole window of their block lies inside [0, m)
    first = min(max(hi - g.start, 0), g.n)
    blocks = max(min(g.n - first, g.m + lo - g.start - first) // rows, 0)
    edge = max(rows, EDGE_ROWS)
    tiles = _edges(0, first, edge, lo, hi, g)
    if blocks:
        col = g.start + first - hi
        tiles.append(Tile(first, rows, blocks, rows + hi - lo, col, shared_mask=True))
    tiles += _edges(first + blocks * rows, g.n, edge, lo, hi, g)
    return tuple(tiles)


def _rows(width: int) -> int:
    """Queries a window: the narrower, the fewer, since each row computes ``rows - 1`` pairs that are not its own."""
    return 32 if width <= 512 else 64 if width <= 1024 else 128


def _edges(first: int, last: int, size: int, lo: int, hi: int, g: Geometry) -> list[Tile]:
    """Single windows for the rows [first, last), their keys clipped to those that exist."""
    tiles = []
    for row in range(first, last, size):
        rows = min(size, last - row)
        low, high = max(g.start + row - hi, 0), min(g.start + row + rows - lo, g.m)
        if low < high:
            tiles.append(Tile(row, rows, 1, high - low, low, shared_mask=True))
    return tiles
