"""Rank correlations against known values, and the coverage of their intervals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from efficient_attn.results.rank_correlation import LEAST_PAIRS, estimate_rank_correlation

# the example of statpsych's ci.spear (Bonett), with two pairs of ties
Y = (21, 4, 9, 12, 35, 18, 10, 22, 24, 1, 6, 8, 13, 16, 19)
X = (67, 28, 30, 28, 52, 40, 25, 37, 44, 10, 14, 20, 28, 40, 51)


def test_a_published_example() -> None:
    assert estimate_rank_correlation(X, Y) == pytest.approx((0.8699639, 0.5840951, 0.9638297), abs=1e-7)
    assert estimate_rank_correlation(Y, X) == pytest.approx((0.8699639, 0.5840951, 0.9638297), abs=1e-7)


@pytest.mark.parametrize("seed", range(8))
def test_values_equal_scipys_also_with_ties(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(LEAST_PAIRS, 30))
    x, y = generator.integers(6, size=n), generator.random(n) + 0.2 * generator.integers(3, size=n)
    estimate = estimate_rank_correlation(x.tolist(), y.tolist())
    assert estimate is not None
    assert estimate.value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    low, high = estimate.ends
    assert -1 <= low <= estimate.value <= high <= 1


def test_only_the_order_matters_and_reversing_it_changes_the_sign() -> None:
    x, y = (3.0, 1.0, 2.0, 5.0, 4.0, 9.0), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    estimate = estimate_rank_correlation(x, y)
    assert estimate == estimate_rank_correlation([math.exp(v) for v in x], y)
    mirrored = estimate_rank_correlation([-v for v in x], y)
    assert estimate is not None
    assert mirrored == pytest.approx((-estimate.value, -estimate.ends[1], -estimate.ends[0]))


def test_perfect_correlations_have_an_interval() -> None:
    widths = []
    for n in (5, 8, 12, 40):
        low, high = (estimate_rank_correlation(range(n), [sign * v for v in range(n)]) for sign in (1, -1))
        assert low is not None
        assert low.value == low.high == 1
        assert high == pytest.approx((-1, -1, -low.ends[0]))
        widths.append(1 - low.ends[0])
    assert widths == sorted(widths, reverse=True)
    assert 0.5 < widths[0] < 1  # with five pairs, one of 60 orders is as perfect by chance
    assert widths[-1] > 0


def test_without_variation_there_is_no_correlation() -> None:
    assert estimate_rank_correlation([1.0] * 6, range(6)) is None
    assert estimate_rank_correlation(range(6), [0.5] * 6) is None
    with pytest.raises(ValueError, match="needs at least 5 pairs, got 4"):
        estimate_rank_correlation(range(4), range(4))


@pytest.mark.parametrize("n", [5, 6, 7])
def test_independent_orders_are_rarely_decided(n: int) -> None:
    """Over all orders, the interval excludes 0 in at most 5%."""
    excluded = count = 0
    for order in itertools.permutations(range(n)):
        if order[0] > order[-1]:  # the others mirror these
            continue
        estimate = estimate_rank_correlation(order, range(n))
        assert estimate is not None
        excluded += estimate.ends[0] > 0 or estimate.ends[1] < 0
        count += 1
    assert 0 < excluded / count <= 0.05


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("n", [6, 12])
def test_intervals_contain_the_true_value_in_about_95_percent(n: int, correlation: float) -> None:
    generator, repeats = np.random.default_rng(n), 1000
    truth = 6 / math.pi * math.asin(correlation / 2)  # Spearman's correlation of normal pairs
    contained = 0
    for _ in range(repeats):
        x, noise = generator.standard_normal((2, n))
        estimate = estimate_rank_correlation(x, correlation * x + math.sqrt(1 - correlation**2) * noise)
        assert estimate is not None
        contained += estimate.ends[0] <= truth <= estimate.ends[1]
    assert 0.92 <= contained / repeats <= 0.995


def test_twelve_mechanisms_leave_a_wide_interval() -> None:
    estimate = estimate_rank_correlation(range(12), (0, 6, 4, 1, 9, 2, 8, 3, 5, 11, 7, 10))
    assert estimate is not None
    assert estimate.ends[1] - estimate.ends[0] > 0.5
