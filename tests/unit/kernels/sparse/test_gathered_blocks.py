"""Tiles of gathered blocks: which key blocks are gathered, and how they are divided into tiles."""

from __future__ import annotations

import pytest
import torch

from efficient_attn.kernels.sparse.gathered_blocks import tile_drawn_blocks, tile_touched_blocks
from efficient_attn.kernels.sparse.tiles import Gather, Tile, TilingRule
from efficient_attn.patterns import Band, Blocks, Geometry, Keys, Pattern, Where, sliding_window

PATTERNS = (
    sliding_window(5),
    Pattern((Band(0, 40, 8),)),
    Band(-3, 3) | Keys(0, 2),
    Band(0, 6) | Keys(5, 7, 9),
    Pattern((Where(lambda i, j: (i + j) % 7 == 0),)),
    Pattern((Keys(30, 31),)),
)


def tiles_of(pattern: Pattern, g: Geometry, size: int) -> list[Tile]:
    return tile_touched_blocks(TilingRule(pattern, (), g), size)


def rows_of(tiles: list[Tile]) -> list[int]:
    return [r for t in tiles for r in t.queries.positions(0, t.count, torch.device("cpu")).flatten().tolist()]


def test_no_key_block_is_gathered_twice_for_a_row() -> None:
    for pattern in PATTERNS:
        for tile in tiles_of(pattern, Geometry(90, 90, 0, False), 16):
            assert isinstance(tile.keys, Gather)
            for row in tile.keys.table.tolist():
                real = [b for b in row if b >= 0]
                assert len(real) == len(set(real))


def test_rows_without_keys_are_in_no_tile() -> None:
    assert min(rows_of(tiles_of(Pattern((Keys(40, 42),)), Geometry(64, 64, 0, True), 16))) == 32


@pytest.mark.parametrize("causal", [False, True])
def test_work_grows_linearly_for_bounded_patterns(causal: bool) -> None:
    def work(n: int) -> int:
        return sum(t.pairs for t in tiles_of(sliding_window(100) | Keys(0, 4), Geometry(n, n, 0, causal), 64))

    assert work(1 << 14) / work(1 << 13) == pytest.approx(2, rel=0.05)


def test_tables_contain_block_numbers() -> None:
    (tile,) = tiles_of(sliding_window(1), Geometry(32, 32, 0, False), 16)
    assert isinstance(tile.keys, Gather)
    assert torch.equal(tile.keys.table, torch.tensor([[0, 1], [0, 1]]))


def test_drawn_blocks_equal_those_of_the_fact() -> None:
    g, fact = Geometry(256, 256, 0, False), Blocks(16, 3, seed=2)
    drawn = {}
    for tile in tile_drawn_blocks(fact, TilingRule(fact, (Blocks(16),), g)):
        assert tile.rule is None
        for row, keys in zip(range(tile.queries.first, 256, 16), tile.keys.table.tolist(), strict=False):  # pyright: ignore
            drawn[row // 16] = keys
    assert drawn == {a: sorted({*fact.draws(a, g)} - {a}) for a in range(16)}


def test_ragged_ends_are_masked() -> None:
    g, fact = Geometry(50, 50, 0, False), Blocks(16, 4)
    tiles = tile_drawn_blocks(fact, TilingRule(fact, (Blocks(16),), g))
    assert sorted(rows_of(tiles)) == list(range(50))
    for tile in tiles:
        assert isinstance(tile.keys, Gather)
        assert tile.keys.whole == (tile.rule is None) == (not (tile.keys.table == 3).any())
