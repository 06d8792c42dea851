"""Plans for any pattern: for each block of queries, gather the key blocks that it touches, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from ..patterns import Geometry, Pattern
from .tiles import Tile

SIZE = 64  # queries and keys a block


@lru_cache(maxsize=64)
def block_tiles(pattern: Pattern, g: Geometry, size: int = SIZE) -> tuple[Tile, ...]:
    """Gather tiles of a pattern. Neighbouring query blocks share a tile while their key lists are of like length."""
    tiles = []
    for start, lists in _runs(pattern, g, size):
        width = max(len(keys) for keys in lists)
        if width:
            table = torch.tensor([keys + [-1] * (width - len(keys)) for keys in lists])
            rows = min(size, g.n - start)
            tiles.append(Tile(start, rows, len(lists), width * size, blocks=table, block=size))
    return tuple(tiles)


def _runs(pattern: Pattern, g: Geometry, size: int) -> Iterator[tuple[int, list[list[int]]]]:
    """Runs of query blocks as (first row, their key lists); a ragged last block stands alone."""
    first, run = 0, []
    for row in range(0, g.n, size):
        last = min(row + size, g.n) - 1
        keys = pattern.key_blocks(g.start + row, g.start + last, size, g)
        ragged = last - row + 1 < size
        if run and (ragged or not _alike(len(keys), len(run[0]))):
            yield first, run
            run = []
        if not run:
            first = row
        run.append(keys)
    if run:
        yield first, run


def _alike(a: int, b: int) -> bool:
    return min(a, b) > 0.75 * max(a, b) or a == b
