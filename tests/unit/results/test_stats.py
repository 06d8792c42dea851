"""Statistics: coverage of intervals by simulation, and recovered slopes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.results.stats import (
    Estimate,
    Mean,
    adjust_holm,
    classify_ratio,
    estimate_exponent,
    estimate_geometric_mean,
    estimate_grouped_share,
    estimate_mean,
    estimate_paired_ratio,
    estimate_share,
    estimate_trimmed_mean,
    median,
)

positive = st.floats(1e-6, 1e6)


@pytest.mark.parametrize("rounds", [3, 8, 20])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_geometric_mean_has_its_nominal_coverage(rounds: int, confidence: float) -> None:
    rng = np.random.default_rng(rounds)
    hits, runs = 0, 1500
    for _ in range(runs):
        e = estimate_geometric_mean((5 * np.exp(rng.normal(0, 0.2, rounds))).tolist(), confidence=confidence)
        assert e.low is not None
        assert e.high is not None
        hits += e.low <= 5 <= e.high
    assert hits / runs == pytest.approx(confidence, abs=4 * math.sqrt(confidence * (1 - confidence) / runs))


def test_exponent_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(0)
    lengths = [2.0**e for e in range(9, 15)]
    hits, runs = 0, 1500
    for _ in range(runs):
        e = estimate_exponent(lengths, [3 * n**1.5 * math.exp(rng.normal(0, 0.1)) for n in lengths])
        assert e.low is not None
        assert e.high is not None
        hits += e.low <= 1.5 <= e.high
    assert hits / runs == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, 2.0])
def test_exponent_of_a_power_is_its_power(slope: float) -> None:
    lengths = [512.0, 1024.0, 4096.0, 16384.0]
    e = estimate_exponent(lengths, [7 * n**slope for n in lengths])
    assert e == pytest.approx((slope, slope, slope), abs=1e-9)


def test_exponent_of_two_lengths_has_no_interval() -> None:
    assert estimate_exponent([10, 100], [1, 100]) == Estimate(pytest.approx(2.0), None, None)


@pytest.mark.parametrize("lengths", [[], [8], [8, 8, 8]])
def test_exponent_needs_different_lengths(lengths: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two different lengths"):
        estimate_exponent(lengths, [1.0] * len(lengths))


@given(st.lists(positive, min_size=2, max_size=12))
def test_geometric_mean_lies_in_its_interval_and_among_its_values(values: list[float]) -> None:
    e = estimate_geometric_mean(values)
    assert e.low is not None
    assert e.high is not None
    slack = 1 + 1e-9
    assert e.low <= e.value * slack
    assert e.value <= e.high * slack
    assert min(values) <= e.value * slack
    assert e.value <= max(values) * slack


@given(st.lists(positive, min_size=1, max_size=8), positive)
def test_geometric_mean_scales_with_its_unit(values: list[float], unit: float) -> None:
    assert estimate_geometric_mean([unit * x for x in values]).value == pytest.approx(
        unit * estimate_geometric_mean(values).value, rel=1e-9
    )


def test_one_value_has_no_interval() -> None:
    assert estimate_geometric_mean([3.0]) == Estimate(pytest.approx(3.0), None, None)


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -1.0]])
def test_geometric_mean_needs_positive_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="needs positive values"):
        estimate_geometric_mean(values)


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=8))
def test_ratios_invert(pairs: list[tuple[float, float]]) -> None:
    top, bottom = zip(*pairs, strict=True)
    assert estimate_paired_ratio(top, bottom).value == pytest.approx(
        1 / estimate_paired_ratio(bottom, top).value, rel=1e-9
    )


def test_pairing_cancels_disturbances_of_whole_rounds() -> None:
    rng = np.random.default_rng(0)
    disturbances = np.exp(rng.normal(0, 1, 10))
    ratio = estimate_paired_ratio((2 * disturbances).tolist(), disturbances.tolist())
    assert ratio == pytest.approx((2, 2, 2))
    unpaired = estimate_geometric_mean((2 * disturbances).tolist())
    assert unpaired.high is not None
    assert unpaired.high > 3


def test_unpaired_rounds_are_ignored() -> None:
    assert estimate_paired_ratio([2.0, 4.0, 100.0], [1.0, 2.0]).value == pytest.approx(2)


def test_more_confidence_is_a_wider_interval() -> None:
    wide, narrow = (
        estimate_geometric_mean([1.0, 1.1, 0.9], confidence=0.99),
        estimate_geometric_mean([1.0, 1.1, 0.9], confidence=0.9),
    )
    assert (wide.low or 0) < (narrow.low or 0)
    assert (narrow.high or 0) < (wide.high or 0)


# -- rounds of several processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("between", "processes"), [(0.0, 4), (0.0, 8), (1.0, 4), (3.0, 4), (3.0, 8), (10.0, 4)])
def test_intervals_cover_with_correlated_rounds_in_a_process(between: float, processes: int) -> None:
    rng = np.random.default_rng(processes)
    groups = [p for p in range(processes) for _ in range(2)]
    hits, runs = 0, 1500
    for _ in range(runs):
        own = rng.normal(0, between, processes)
        interval = estimate_mean([7 + own[p] + rng.normal() for p in groups], groups).interval(0.95)
        assert interval is not None
        hits += interval[0] <= 7 <= interval[1]
    assert 0.92 <= hits / runs <= 0.99


def test_one_process_or_two_count_as_rounds() -> None:
    values = [1.0, 1.1, 0.9, 1.2]
    assert estimate_mean(values, [0, 0, 0, 0]) == estimate_mean(values, [0, 0, 1, 1]) == estimate_mean(values)
    assert estimate_mean(values).degrees == 3


def test_one_round_has_no_error() -> None:
    assert estimate_mean([2.0]).interval() is None
    assert Estimate(2.0).half_width == math.inf


# -- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.05, 1.15, "faster"),
        (0.85, 0.95, "slower"),
        (0.99, 1.01, "same"),
        (1.001, 1.019, "same"),  # within the margin
        (0.9, 1.1, "inconclusive"),
        (1.001, 1.03, "inconclusive"),  # its middle may or may not matter
        (0.97, 1.2, "inconclusive"),
    ],
)
def test_verdicts_follow_from_the_interval(low: float, high: float, verdict: str) -> None:
    assert classify_ratio(low, high) == verdict


def test_same_means_within_the_tolerance() -> None:
    assert classify_ratio(0.95, 1.05, tolerance=0.1) == "same"
    assert classify_ratio(0.95, 1.05, tolerance=0.04) == "inconclusive"
    assert classify_ratio(1.03, 1.05, tolerance=0.1) == "faster"  # a difference that counts is one, however small


@pytest.mark.parametrize("degrees", [1, 3, 20])
def test_the_p_value_is_the_level_at_which_the_interval_reaches_0(degrees: int) -> None:
    mean = Mean(0.3, 0.1, degrees)
    ends = mean.interval(1 - mean.p_value)
    assert ends is not None
    assert ends[0] == pytest.approx(0, abs=1e-9)
    assert Mean(-0.3, 0.1, degrees).p_value == pytest.approx(mean.p_value)


def test_p_values_at_the_ends() -> None:
    assert [Mean(0.0, 0.0, 5).p_value, Mean(0.1, 0.0, 5).p_value, Mean(9.0, 0.1, 0).p_value] == [1, 0, 1]


def test_holm_continues_from_the_smallest_until_one_fails() -> None:
    assert adjust_holm([0.03, 0.001, 0.015, 0.9], 0.05) == pytest.approx([0.0125, 0.05 / 4, 0.05 / 3, 0.0125])
    assert adjust_holm([0.04, 0.001], 0.05) == pytest.approx([0.05, 0.025])
    assert adjust_holm([0.04, 0.03], 0.05) == pytest.approx([0.025, 0.025])
    assert adjust_holm([], 0.05) == []


@given(st.floats(0.1, 10), st.floats(1, 2))
def test_an_inverted_ratio_has_the_opposite_verdict(low: float, width: float) -> None:
    opposite = {"faster": "slower", "slower": "faster"}
    verdict = classify_ratio(low, low * width)
    assert classify_ratio(1 / (low * width), 1 / low) in (opposite.get(verdict, verdict), "inconclusive")


def test_noise_is_rarely_and_five_percent_usually_significant() -> None:
    rng = np.random.default_rng(0)
    called = {0.0: 0, 0.05: 0}
    for effect in called:
        for _ in range(1000):
            rounds = np.exp(rng.normal(effect, 0.025, 12)).tolist()
            estimate = estimate_paired_ratio(rounds, [1.0] * 12, confidence=0.99)
            assert estimate.low is not None
            assert estimate.high is not None
            called[effect] += classify_ratio(estimate.low, estimate.high) in ("faster", "slower")
    assert called[0.0] <= 20
    assert called[0.05] >= 950


def test_the_median_is_a_measured_value() -> None:
    assert [median(v) for v in ([3.0], [5.0, 1.0, 3.0], [4.0, 1.0], [9.0, 2.0, 1.0, 3.0])] == [3.0, 3.0, 4.0, 3.0]


def test_shares_of_few_trials_have_wilsons_interval() -> None:
    estimate = estimate_share(11, 80)
    assert estimate == pytest.approx((0.1375, 0.0786, 0.2292), abs=5e-4)  # calculated from the formula
    assert estimate_share(0, 10)[:2] == (0.0, 0.0)
    assert estimate_share(10, 10).low == pytest.approx(0.7225, abs=5e-4)
    with pytest.raises(ValueError, match="trial"):
        estimate_share(0, 0)


@given(st.integers(1, 300), st.data())
def test_an_interval_of_a_share_contains_it_and_narrows(count: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, count))
    few, many = estimate_share(hits, count), estimate_share(4 * hits, 4 * count)
    for estimate in (few, many):
        assert estimate.low is not None
        assert estimate.high is not None
        assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert many.high - many.low < few.high - few.low
    other = estimate_share(count - hits, count)
    assert (1 - other.low, 1 - other.high) == pytest.approx((few.high, few.low), abs=1e-12)


def test_the_trimmed_mean_has_its_nominal_coverage_with_outliers() -> None:
    rng, repeats, confidence = np.random.default_rng(3), 1000, 0.99
    intervals = [estimate_trimmed_mean(rng.standard_t(2, 24).tolist()).interval(confidence) for _ in range(repeats)]
    misses = sum(low > 0 or high < 0 for low, high in filter(None, intervals))
    assert misses <= 0.01 * repeats + 3 * math.sqrt(0.01 * 0.99 * repeats)


def test_a_trimmed_mean_ignores_values_that_are_far_off() -> None:
    values = [0.01 * i for i in range(-10, 11)]
    usual, disturbed = estimate_trimmed_mean(values), estimate_trimmed_mean([*values[:-3], 1e3, 1e4, 1e5])
    assert disturbed.value == pytest.approx(usual.value) == pytest.approx(0, abs=1e-12)
    assert disturbed.error == pytest.approx(usual.error)
    assert usual.degrees == 21 - 2 * 4 - 1


def test_few_values_are_not_trimmed() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    assert estimate_trimmed_mean(values) == pytest.approx(estimate_mean(values))
    assert estimate_trimmed_mean([3.0]).degrees == 0


def test_a_grouped_share_is_wider_where_groups_differ() -> None:
    alike = estimate_grouped_share([[True, True, False, False]] * 16)
    assert (alike.value, alike.ends) == (0.5, estimate_share(32, 64).ends)  # all groups agree: Wilson's
    unlike = estimate_grouped_share([[True] * 4, [False] * 4] * 8)
    # binomial: 16 groups, each with 0 or 4 hits
    assert (unlike.value, *unlike.ends) == pytest.approx((0.5, 0.25, 0.75), abs=0.01)
    assert estimate_grouped_share([[True] * 3] * 5).ends == estimate_share(15, 15).ends
    with pytest.raises(ValueError, match="at least one trial"):
        estimate_grouped_share([])


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=20))
def test_a_grouped_share_contains_wilsons_interval(groups: list[list[bool]]) -> None:
    share = estimate_grouped_share(groups)
    low, high = estimate_share(sum(map(sum, groups)), sum(map(len, groups))).ends
    assert 0 <= share.ends[0] <= low <= share.value <= high <= share.ends[1] <= 1
