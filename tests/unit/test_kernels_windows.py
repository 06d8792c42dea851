"""Plans for windows: every row in at most one tile, every allowed pair in its row's tile, little else computed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.kernels.tiles import Tile
from efficient_attn.kernels.windows import window_tiles
from efficient_attn.patterns import Band, Geometry

CPU = torch.device("cpu")


def keys_of_rows(plan: tuple[Tile, ...]) -> dict[int, set[int]]:
    """Row by row the keys that a plan looks at; a row in two tiles is an error."""
    found: dict[int, set[int]] = {}
    for tile in plan:
        queries = tile.queries_of(0, tile.count, CPU).tolist()
        keys = tile.keys_of(0, tile.count, CPU).tolist()
        for rows, span in zip(queries, keys, strict=True):
            for row in rows:
                assert row not in found, f"row {row} is in two tiles"
                found[row] = set(span)
    return found


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 500), st.integers(1, 500), st.sampled_from([None, 0, -30, 77]),
    st.integers(-60, 60), st.integers(0, 90), st.booleans(),
)  # fmt: skip
def test_every_allowed_pair_is_in_its_rows_tile(
    n: int, m: int, start: int | None, lo: int, width: int, causal: bool
) -> None:
    g, band = Geometry(n, m, m - n if start is None else start, causal), Band(lo, lo + width)
    found = keys_of_rows(window_tiles(band, g))
    for row in range(n):
        i = g.start + row
        wanted = {j for j in range(max(i - band.hi, 0), min(i - band.lo, m - 1) + 1) if not causal or j <= i}
        assert wanted <= found.get(row, set())
        assert all(0 <= j < m for j in found.get(row, ()))
    assert all(0 <= row < n for row in found)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 8, 128, 600])
def test_work_grows_with_the_length_and_not_its_square(window: int, causal: bool) -> None:
    def work(n: int) -> int:
        plan = window_tiles(Band(-window, window), Geometry(n, n, 0, causal))
        return sum(t.count * t.rows * t.span for t in plan)

    span = (window if causal else 2 * window) + 1
    assert work(1 << 17) / work(1 << 16) == pytest.approx(2, rel=0.05)
    assert work(1 << 16) <= (1 << 16) * (span + 132)


def test_inner_windows_share_one_mask_and_one_tile() -> None:
    plan = window_tiles(Band(-16, 16), Geometry(4096, 4096, 0, False))
    inner = max(plan, key=lambda t: t.count)
    assert inner.shared_mask
    assert inner.count * inner.rows > 4000
    assert len(plan) <= 4


def test_a_window_in_the_future_only_sees_nothing_when_causal() -> None:
    assert window_tiles(Band(-9, -2), Geometry(10, 10, 0, True)) == ()
