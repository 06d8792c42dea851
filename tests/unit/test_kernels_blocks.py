"""Plans for any pattern: the same promises as for windows, by gathered blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels_windows import keys_of_rows

from efficient_attn.kernels.blocks import block_tiles
from efficient_attn.patterns import Band, Geometry, Keys, Pattern, Where, sliding_window

PATTERNS = (
    sliding_window(5),
    Pattern((Band(0, 40, 8),)),
    Band(-3, 3) | Keys(0, 2),
    Band(0, 6) | Keys(5, 7, 9),
    Pattern((Where(lambda i, j: (i + j) % 7 == 0),)),
    Pattern((Keys(30, 31),)),
)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(PATTERNS), st.integers(1, 90), st.integers(1, 90), st.sampled_from([None, 0, -20, 50]),
    st.booleans(), st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_every_allowed_pair_is_in_its_rows_tile(
    pattern: Pattern, n: int, m: int, start: int | None, causal: bool, size: int
) -> None:
    g = Geometry(n, m, m - n if start is None else start, causal)
    found = keys_of_rows(block_tiles(pattern, g, size))
    for row in range(n):
        i = g.start + row
        wanted = {j for j in range(m) if pattern.allows(i, j, g) and (not causal or j <= i)}
        assert wanted <= found.get(row, set())
    assert all(0 <= row < n for row in found)


def test_no_key_block_is_gathered_twice_for_a_row() -> None:
    for pattern in PATTERNS:
        for tile in block_tiles(pattern, Geometry(90, 90, 0, False), 16):
            assert tile.blocks is not None
            for row in tile.blocks.tolist():
                real = [b for b in row if b >= 0]
                assert len(real) == len(set(real))


def test_rows_that_see_nothing_are_in_no_tile() -> None:
    plan = block_tiles(Pattern((Keys(40, 42),)), Geometry(64, 64, 0, True), 16)
    assert min(keys_of_rows(plan)) == 32


@pytest.mark.parametrize("causal", [False, True])
def test_work_grows_with_the_length_for_bounded_patterns(causal: bool) -> None:
    def work(n: int) -> int:
        plan = block_tiles(sliding_window(100) | Keys(0, 4), Geometry(n, n, 0, causal))
        return sum(t.count * t.rows * t.span for t in plan)

    assert work(1 << 14) / work(1 << 13) == pytest.approx(2, rel=0.05)


def test_equal_plans_are_made_once() -> None:
    g = Geometry(64, 64, 0, False)
    assert block_tiles(sliding_window(5), g) is block_tiles(sliding_window(5), g)


def test_tables_are_tensors_of_block_numbers() -> None:
    (tile,) = block_tiles(sliding_window(1), Geometry(32, 32, 0, False), 16)
    assert torch.equal(tile.blocks, torch.tensor([[0, 1], [0, 1]]))  # pyright: ignore[reportArgumentType]
