"""The number of possible pairs, with and without causality, for any start of the queries."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.patterns.pair_counts import count_possible_pairs


@given(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.none() | st.integers(-50, 60))
def test_possible_pairs_equal_a_count_of_the_mask(n: int, m: int, causal: bool, start: int | None) -> None:
    first = m - n if start is None else start
    mask = np.arange(m)[None] <= np.arange(n)[:, None] + first if causal else np.ones((n, m))
    assert count_possible_pairs(n, m, causal, start) == mask.sum()


def test_large_counts_are_exact() -> None:
    n = 1 << 30
    assert count_possible_pairs(n, n, True) == n * (n + 1) // 2
