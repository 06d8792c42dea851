"""Grids of patterns: counts of allowed pairs, sampling, and the selected lengths."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.patterns import Band, Geometry, Keys, Pattern, Where, as_pattern, rasterize, sliding_window
from efficient_attn.patterns.pair_counts import count_possible_pairs
from efficient_attn.patterns.rasterize import choose_length, compute_share_grid, compute_share_grids

facts = st.one_of(
    st.builds(lambda lo, width, step: Band(lo, lo + width, step), st.integers(-9, 9), st.integers(0, 9), st.just(2)),
    st.builds(lambda first, width: Keys(first, first + width), st.integers(0, 5), st.integers(1, 4)),
    st.integers(2, 5).map(lambda p: Where(lambda i, j: (i * 3 + j) % p == 0)),
)
patterns = st.lists(facts, min_size=1, max_size=3).map(lambda drawn: Pattern(tuple(drawn)))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    n, m = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    return Geometry(n, m, draw(st.sampled_from([m - n, 0, -3, m + 2])), draw(st.booleans()))


def allowed(pattern: Pattern, g: Geometry) -> np.ndarray:
    i, j = np.arange(g.n)[:, None] + g.start, np.arange(g.m)[None]
    seen = np.broadcast_to(pattern.allows(i, j, g), (g.n, g.m))
    return seen & (j <= i) if g.causal else seen


@settings(max_examples=200, deadline=None)
@given(patterns, geometries(), st.integers(1, 50), st.integers(1, 50))
def test_grid_cells_count_their_allowed_pairs(pattern: Pattern, g: Geometry, rows: int, columns: int) -> None:
    grid, seen = compute_share_grid(pattern.allows, g, rows=rows, columns=columns), allowed(pattern, g)
    assert grid.exact
    assert grid.allowed_pairs.sum() == seen.sum()
    assert grid.cell_pairs.sum() == g.n * g.m
    assert grid.allowed_pairs.shape == (min(rows, g.n), min(columns, g.m))
    down, across = (np.arange(c + 1) * size // c for c, size in zip(grid.allowed_pairs.shape, (g.n, g.m), strict=True))
    for r, c in np.ndindex(grid.allowed_pairs.shape):
        assert grid.allowed_pairs[r, c] == seen[down[r] : down[r + 1], across[c] : across[c + 1]].sum()
    assert ((grid.shares >= 0) & (grid.shares <= 1)).all()


def test_a_grid_with_a_cell_per_pair_equals_the_pattern() -> None:
    g = Geometry(24, 24, 0, True)
    grid = compute_share_grid(sliding_window(3).allows, g, rows=99, columns=99)
    assert np.array_equal(grid.shares, allowed(sliding_window(3), g))
    assert grid.share == pytest.approx(sum(min(i, 3) + 1 for i in range(24)) / 300)


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_are_sampled_with_bounded_memory(causal: bool) -> None:
    pattern, g = sliding_window(8192), Geometry(1 << 16, 1 << 16, 0, causal)
    tracemalloc.start()
    grid = compute_share_grid(pattern.allows, g, rows=32, columns=32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not grid.exact
    assert peak < 100 * 2**20  # all pairs would be 4 GiB
    i = np.arange(g.n)
    kept = (np.minimum(i + 8192, i if causal else g.n - 1) - np.maximum(i - 8192, 0) + 1).sum()
    assert grid.share == pytest.approx(kept / count_possible_pairs(g.n, g.m, causal), rel=0.01)
    repeated = compute_share_grid(pattern.allows, g, rows=32, columns=32)
    assert np.array_equal(grid.allowed_pairs, repeated.allowed_pairs)


def test_sampling_is_not_aliased_by_periodic_patterns() -> None:
    """A pattern of every eighth query, sampled at every eighth query."""
    pattern, g = as_pattern(Where(lambda i, j: (i % 8 == 0) & (j == j))), Geometry(4096, 64, 0, False)
    grid = compute_share_grid(pattern.allows, g, rows=4, columns=4, budget=4096 * 64 // 8)
    assert not grid.exact
    assert grid.share == pytest.approx(1 / 8, rel=0.3)


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        (sliding_window(3), 32),
        (sliding_window(128), 1024),
        (sliding_window(8192), 1 << 16),
        (Band(-31, 31) | Band(None, None, 32), 256),
        (Keys(0, 4) | Band(-4, 4), 64),
        (as_pattern(Band(100, 128)), 512),
        (as_pattern(Keys(0, 8, 16)), 64),  # half of all keys at any length
        (as_pattern(Band(None, None)), 32),  # all keys at any length
    ],
)
def test_choose_length_fits_windows_and_strides(pattern: Pattern, length: int) -> None:
    assert choose_length(pattern, causal=False) == length


def test_grids_of_both_directions_have_equal_lengths() -> None:
    bidirectional, causal = compute_share_grids(sliding_window(16), directions=(False, True), rows=8, columns=8)
    assert bidirectional.geometry.n == causal.geometry.n == 128
    assert (bidirectional.direction, causal.direction) == ("bidirectional", "causal")
    (grid,) = compute_share_grids(sliding_window(16), directions=(True,), rows=8, columns=8, length=50)
    assert grid.geometry == Geometry(50, 50, 0, True)


def test_rasterize_does_not_import_torch() -> None:
    code = f"import sys, {rasterize.__name__}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
