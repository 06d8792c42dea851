"""Tiles of gathered key blocks: random ones, and those that any other rule touches."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from ...patterns import Blocks, Pattern
from .tiles import Gather, Tile, TilingRule, View

BLOCK_SIZE = 64  # queries and keys of a block for patterns without their own


class BlockRow(NamedTuple):
    """One block of queries: its first index, how many, the key blocks that it sees, and whether all of their pairs."""

    first: int
    rows: int
    keys: tuple[int, ...]
    unmasked: bool


def tile_touched_blocks(rule: TilingRule, size: int = BLOCK_SIZE) -> list[Tile]:
    """Tiles of any rule: for each block of queries the key blocks that it may touch, masked."""
    pattern, g = rule.fact, rule.g
    touched = pattern.key_blocks if isinstance(pattern, Pattern) else Pattern((pattern,)).key_blocks
    rows = []
    for row in range(0, g.n, size):
        last = min(row + size, g.n)
        keys = touched(g.start + row, g.start + last - 1, size, g)
        rows.append(BlockRow(row, last - row, tuple(keys), False))
    return list(_make_tiles(rows, size, rule))


def tile_drawn_blocks(fact: Blocks, rule: TilingRule) -> list[Tile]:
    """Tiles of the random blocks. Pairs counted by earlier facts are left out, or masked if they are a part."""
    return list(_make_tiles(_draw_rows(fact, rule), fact.size, rule))


def _draw_rows(fact: Blocks, rule: TilingRule) -> Iterator[BlockRow]:
    g, size = rule.g, fact.size
    a = np.arange(max(g.start, 0) // size, (g.start + g.n - 1) // size + 1)
    table = np.stack(fact.draws(a, g), axis=-1).tolist() if len(a) else []
    before = Pattern(rule.earlier_facts)
    for block, choices in zip(a.tolist(), table, strict=True):
        first, last = max(block * size, g.start), min((block + 1) * size, g.start + g.n) - 1
        row, rows = first - g.start, last - first + 1
        other_blocks = {b for b in choices if b >= 0 and b != block and b * size < g.m}
        overlapping = other_blocks & set(before.key_blocks(first, last, size, g)) if other_blocks else set()
        keys, unmasked = [], True
        for b in sorted(other_blocks):
            share = _counted_share(rule, row, rows, b, size) if b in overlapping else 1.0
            keys += [b] if share else []
            unmasked = unmasked and share in (0, 1) and (share == 0 or (b + 1) * size <= g.m)
        yield BlockRow(row, rows, tuple(keys), unmasked)


def _counted_share(rule: TilingRule, row: int, rows: int, block: int, size: int) -> float:
    queries, keys = torch.arange(row, row + rows)[:, None], torch.arange(block * size, (block + 1) * size)
    return rule(queries, keys).double().mean().item()


def _make_tiles(rows: Iterable[BlockRow], size: int, rule: TilingRule) -> Iterator[Tile]:
    """Neighbouring blocks of queries share a tile while they see as many key blocks, or nearly where all are masked."""
    for group in _group_rows(rows):
        width = max(len(r.keys) for r in group)
        if width:
            table = torch.tensor([[*r.keys, *[-1] * (width - len(r.keys))] for r in group])
            queries = View(group[0].first, group[0].rows, 1, group[0].rows)
            unmasked = group[0].unmasked
            yield Tile(len(group), queries, Gather(table, size, unmasked), None if unmasked else rule)


def _group_rows(rows: Iterable[BlockRow]) -> Iterator[list[BlockRow]]:
    group: list[BlockRow] = []
    for row in rows:
        first = group[0] if group else row
        few, many = sorted((len(first.keys), len(row.keys)))
        are_close = few == many or (not row.unmasked and few > 0.75 * many)
        if (first.unmasked, first.rows) != (row.unmasked, row.rows) or not are_close:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
