"""Draws: distinct, uniform, deterministic, and equal for tensors, arrays and numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.patterns.draws import draw

seeds = st.integers(-(1 << 70), 1 << 70)


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(0, 1 << 20), st.integers(1, 30), st.integers(0, 12))
def test_draws_are_distinct_and_padded_with_minus_one(seed: int, key: int, among: int, count: int) -> None:
    numbers = draw(seed, key, among, count)
    valid = [x for x in numbers if x >= 0]
    assert len(numbers) == count
    assert len(set(valid)) == len(valid) == min(count, among)
    assert all(x < among for x in valid)
    assert numbers == valid + [-1] * (count - len(valid))


@settings(max_examples=50, deadline=None)
@given(seeds, st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 1 << 30)), min_size=1), st.integers(1, 5))
def test_draws_are_equal_for_tensors_arrays_and_numbers(seed: int, pairs: list[tuple[int, int]], count: int) -> None:
    want = [draw(seed, key, among, count) for key, among in pairs]
    key, among = np.array(pairs).T
    assert np.stack(draw(seed, key, among, count), -1).tolist() == want
    assert torch.stack(draw(seed, torch.tensor(key), torch.tensor(among), count), -1).tolist() == want


@pytest.mark.parametrize("seed", [0, 1, -1, 1 << 40])
def test_draws_are_uniform(seed: int) -> None:
    """Chi-square over 50 numbers, 49 degrees of freedom: above 100 once in 30,000 draws of a fair source."""
    key = np.arange(4000)
    numbers = np.stack(draw(seed, key, key * 0 + 50, 3))
    counts = np.bincount(numbers.ravel(), minlength=50)
    assert ((counts - 240) ** 2 / 240).sum() < 100


def test_draws_of_adjacent_keys_are_independent() -> None:
    numbers = draw(3, np.arange(20_000), np.full(20_000, 64), 1)[0]
    table = np.histogram2d(numbers[:-1], numbers[1:], bins=16)[0]
    assert ((table - table.mean()) ** 2 / table.mean()).sum() < 400  # 255 degrees of freedom


def test_draws_depend_on_seed_and_key() -> None:
    key = np.arange(1000)
    base = draw(0, key, key * 0 + 1000, 1)[0]
    for other in (draw(1, key, key * 0 + 1000, 1)[0], draw(0, key + 1, key * 0 + 1000, 1)[0]):
        assert (base == other).mean() < 0.01
    assert draw(0, 5, 1000, 3) == draw(0, 5, 1000, 3)
