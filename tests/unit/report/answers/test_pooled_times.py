"""Pooling of times over several groups: what connects groups, and what widens the errors."""

from __future__ import annotations

import math

import pytest

from efficient_attn.report.answers.pooled_times import GROUP_SPREAD, Timing, estimate_log_error, pool_times


def _group(cell: str, hour: float = 1.0, error: float = 0.01, **ms: float) -> list[Timing]:
    return [Timing(name, cell, math.log(value * hour), error) for name, value in ms.items()]


def test_times_of_a_single_group_are_unchanged() -> None:
    found = pool_times(_group("a", full=8.0, linear=2.0))
    assert found.time("linear").value == pytest.approx(2.0)
    speedup = found.speedup("full", "linear")
    assert speedup is not None
    assert speedup.value == pytest.approx(4.0)
    assert speedup.high is not None
    assert math.log(speedup.high / 4.0) == pytest.approx(1.96 * math.sqrt(2) * 0.01)
    assert found.standard_error("linear") == pytest.approx(0.01)


def test_drift_between_groups_cancels_in_ratios() -> None:
    found = pool_times(_group("a", full=8.0, linear=2.0))
    time = found.time("linear")
    assert time.high is not None
    assert math.log(time.high / time.value) == pytest.approx(1.96 * math.hypot(GROUP_SPREAD, 0.01))


def test_mechanisms_in_two_groups_connect_these() -> None:
    found = pool_times([*_group("a", full=8.0, linear=2.0, window=4.0), *_group("b", 1.1, full=8.0, gqa=1.0)])
    tied = found.speedup("linear", "gqa")
    assert tied is not None
    assert tied.value == pytest.approx(2.0, rel=0.03)  # not 2.0 / 1.1
    alone = pool_times([*_group("a", full=8.0, linear=2.0, window=4.0), *_group("b", 1.1, gqa=1.0)])
    untied = alone.speedup("linear", "gqa")
    assert untied is not None
    assert untied.value == pytest.approx(2.0 / 1.1)
    assert untied.high is not None
    assert tied.high is not None
    assert untied.high / untied.value > tied.high / tied.value
    assert alone.standard_error("gqa") > GROUP_SPREAD > alone.standard_error("linear")


def test_mechanisms_that_vary_between_groups_have_a_wider_error() -> None:
    same = pool_times([*_group("a", full=8.0, linear=2.0, window=3.0), *_group("b", full=8.0, linear=2.0, window=3.0)])
    unlike = pool_times(
        [*_group("a", full=8.0, linear=2.0, window=3.0), *_group("b", full=8.0, linear=3.0, window=3.0)]
    )
    assert unlike.standard_error("linear") > 3 * same.standard_error("linear")


def test_speedups_over_an_untimed_baseline_are_none() -> None:
    assert pool_times(_group("a", linear=2.0)).speedup("full", "linear") is None


@pytest.mark.parametrize(("low", "high"), [(None, 1.0), (1.0, None), (0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_invalid_intervals_have_no_error(low: float | None, high: float | None) -> None:
    assert estimate_log_error(low, high) is None
    assert estimate_log_error(1.0, math.exp(2 * 1.96 * 0.1)) == pytest.approx(0.1)
