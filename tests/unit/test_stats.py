"""Statistics: intervals that hold what they promise, by simulation; slopes that are recovered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.results.stats import Estimate, exponent, paired_ratio, typical

positive = st.floats(1e-6, 1e6)


@pytest.mark.parametrize("rounds", [3, 8, 20])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_typical_covers_the_truth_as_often_as_it_says(rounds: int, confidence: float) -> None:
    rng = np.random.default_rng(rounds)
    hits, runs = 0, 1500
    for _ in range(runs):
        e = typical((5 * np.exp(rng.normal(0, 0.2, rounds))).tolist(), confidence=confidence)
        assert e.low is not None
        assert e.high is not None
        hits += e.low <= 5 <= e.high
    assert hits / runs == pytest.approx(confidence, abs=4 * math.sqrt(confidence * (1 - confidence) / runs))


def test_exponent_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    lengths = [2.0**e for e in range(9, 15)]
    hits, runs = 0, 1500
    for _ in range(runs):
        e = exponent(lengths, [3 * n**1.5 * math.exp(rng.normal(0, 0.1)) for n in lengths])
        assert e.low is not None
        assert e.high is not None
        hits += e.low <= 1.5 <= e.high
    assert hits / runs == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, 2.0])
def test_exponent_of_a_power_is_its_power(slope: float) -> None:
    lengths = [512.0, 1024.0, 4096.0, 16384.0]
    e = exponent(lengths, [7 * n**slope for n in lengths])
    assert e == pytest.approx((slope, slope, slope), abs=1e-9)


def test_exponent_of_two_lengths_has_no_interval() -> None:
    assert exponent([10, 100], [1, 100]) == Estimate(pytest.approx(2.0), None, None)


@pytest.mark.parametrize("lengths", [[], [8], [8, 8, 8]])
def test_exponent_needs_different_lengths(lengths: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two different lengths"):
        exponent(lengths, [1.0] * len(lengths))


@given(st.lists(positive, min_size=2, max_size=12))
def test_typical_lies_in_its_interval_and_among_its_values(values: list[float]) -> None:
    e = typical(values)
    assert e.low is not None
    assert e.high is not None
    slack = 1 + 1e-9
    assert e.low <= e.value * slack
    assert e.value <= e.high * slack
    assert min(values) <= e.value * slack
    assert e.value <= max(values) * slack


@given(st.lists(positive, min_size=1, max_size=8), positive)
def test_typical_scales_with_its_unit(values: list[float], unit: float) -> None:
    assert typical([unit * x for x in values]).value == pytest.approx(unit * typical(values).value, rel=1e-9)


def test_one_value_has_no_interval() -> None:
    assert typical([3.0]) == Estimate(pytest.approx(3.0), None, None)


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0]])
def test_typical_needs_positive_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="needs positive values"):
        typical(values)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=8))
def test_ratios_turn_over(pairs: list[tuple[float, float]]) -> None:
    top, bottom = zip(*pairs, strict=True)
    assert paired_ratio(top, bottom).value == pytest.approx(1 / paired_ratio(bottom, top).value, rel=1e-9)


def test_pairing_takes_out_what_slowed_whole_rounds() -> None:
    rng = np.random.default_rng(0)
    weather = np.exp(rng.normal(0, 1, 10))
    ratio = paired_ratio((2 * weather).tolist(), weather.tolist())
    assert ratio == pytest.approx((2, 2, 2))
    apart = typical((2 * weather).tolist())
    assert apart.high is not None
    assert apart.high > 3


def test_rounds_of_one_series_only_are_left_out() -> None:
    assert paired_ratio([2.0, 4.0, 100.0], [1.0, 2.0]).value == pytest.approx(2)


def test_more_confidence_is_a_wider_interval() -> None:
    wide, narrow = typical([1.0, 1.1, 0.9], confidence=0.99), typical([1.0, 1.1, 0.9], confidence=0.9)
    assert (wide.low or 0) < (narrow.low or 0)
    assert (narrow.high or 0) < (wide.high or 0)
