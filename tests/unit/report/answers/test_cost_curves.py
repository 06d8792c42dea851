"""Interpolation of costs between measured lengths, and curves from rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import report_runs as runs
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.report import approximation_errors, gather, select
from efficient_attn.report.answers.cost_curves import (
    TIME_BEND,
    CostAtLength,
    CostCurve,
    find_timed,
    interpolate,
    interpolate_bytes,
    split_by_config,
)
from efficient_attn.results.stats import Estimate


def _around(value: float, factor: float = 1.0) -> Estimate:
    return Estimate(value, value / factor, value * factor)


@given(st.floats(-2, 3), st.floats(0.01, 100), st.integers(513, 4095), st.floats(1.0, 1.5))
def test_a_power_is_interpolated_exactly(power: float, factor: float, length: int, around: float) -> None:
    ends = [(n, _around(factor * n**power, around)) for n in (512, 4096)]
    found = interpolate(*ends, length, TIME_BEND)
    assert found is not None
    assert found.value == pytest.approx(factor * length**power, rel=1e-6)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value / around * 1.0001  # no narrower than what was measured
    assert found.high >= found.value * around * 0.9999


@given(st.floats(0.1, 10), st.floats(1e-6, 1e-2), st.integers(513, 4095))
def test_a_sum_of_fixed_and_growing_cost_lies_in_the_interval(start: float, slope: float, length: int) -> None:
    """As short calls have it."""
    found = interpolate((512, _around(start + slope * 512)), (4096, _around(start + slope * 4096)), length, TIME_BEND)
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low * 0.9999 <= start + slope * length <= found.high * 1.0001


def test_intervals_widen_with_the_distance_from_what_was_measured() -> None:
    def width(low: int, high: int, length: int) -> float:
        found = interpolate((low, _around(1.0)), (high, _around(1.0)), length, TIME_BEND)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        return math.log(found.high / found.low)

    assert width(1024, 2048, 1025) < 0.001
    assert width(1024, 4096, 1200) < width(1024, 4096, 2048)
    assert width(512, 8192, 2048) == pytest.approx(4 * width(1024, 4096, 2048))  # the square of the gap


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(513, 4095))
def test_linear_bytes_are_interpolated_exactly(start: int, slope: int, length: int) -> None:
    found = interpolate_bytes([(n, Estimate(float(start + slope * n))) for n in (256, 512, 4096, 8192)], length)
    assert found is not None
    assert found.value == found.low == found.high == pytest.approx(start + slope * length)


def test_stepwise_bytes_are_bounded_by_both_ends() -> None:
    def interpolate_sizes(*points: tuple[int, float | None]) -> Estimate | None:
        return interpolate_bytes([(n, None if size is None else Estimate(size)) for n, size in points], 2048)

    found = interpolate_sizes((512, 100.0), (1024, 110.0), (4096, 200.0), (8192, 900.0))
    assert found == Estimate(140.0, 112.0, 175.0)
    assert interpolate_sizes((1024, 190.0), (4096, 200.0)) == Estimate(pytest.approx(193.3, 1e-3), 190.0, 200.0)
    assert interpolate_sizes((512, 1.0), (1024, 2.0)) is None
    assert interpolate_sizes((512, 1.0), (4096, None)) is None


def test_values_missing_at_one_end_are_not_interpolated() -> None:
    assert interpolate((512, None), (4096, _around(1.0)), 1024, TIME_BEND) is None


def _curve(lengths: tuple[int, ...], *, paired: bool = True) -> CostCurve:
    one = Estimate(2.0, 1.9, 2.1)
    points = [CostAtLength(n, one if paired else None, Estimate(n / 100), Estimate(n), None, ()) for n in lengths]
    return CostCurve("linear", 4, "linear", tuple(points))


def test_measured_costs_are_returned_unchanged() -> None:
    taken = _curve((512, 1024)).estimate(1024)
    assert isinstance(taken, CostAtLength)
    assert (taken.basis, taken.between, taken.latency.value) == ("measured", None, 10.24)


def test_interpolated_costs_name_both_lengths() -> None:
    taken = _curve((512, 2048)).estimate(1024)
    assert isinstance(taken, CostAtLength)
    assert (taken.basis, taken.between) == ("interpolated", (512, 2048))
    assert taken.memory is not None
    assert taken.memory.value == pytest.approx(1024)
    assert taken.latency.low is not None
    assert taken.latency.low < taken.latency.value


def test_without_a_baseline_there_is_no_speedup() -> None:
    taken = _curve((512, 2048), paired=False).estimate(1024)
    assert isinstance(taken, CostAtLength)
    assert taken.speedup is None
    assert taken.latency.value == pytest.approx(10.24)


@pytest.mark.parametrize(
    ("paired", "spread"),
    [
        ((), ""),
        ([(3.2, 2.8, 3.6)], ""),
        ([(3.2, 2.8, 3.6), (4.0, 3.5, 4.5)], ""),  # the intervals overlap
        ([(3.2, 2.8, 3.6), (4.9, 4.6, 5.2), (4.6, 4.3, 4.9)], "3 measurements: 3.20x to 4.90x"),
    ],
)
def test_measurements_whose_intervals_exclude_each_other_are_counted(
    paired: Sequence[tuple[float, float, float]], spread: str
) -> None:
    estimates = tuple(Estimate(*ends) for ends in paired)
    assert CostAtLength(1024, None, Estimate(1.0), None, None, (), paired=estimates).spread == spread


@pytest.mark.parametrize(
    ("lengths", "says"), [((512, 1024), "timed only at 512, 1K"), ((128, 65536), "not timed between 128 and 64K")]
)
def test_lengths_without_an_estimate_have_a_reason(lengths: tuple[int, ...], says: str) -> None:
    assert _curve(lengths).estimate(4096 if 65536 in lengths else 2048) == says


def test_rows_of_one_configuration_form_a_curve_per_mechanism(tmp_path: Path) -> None:
    again = runs.write_run(tmp_path / "again", runs.speed(lengths=(1024,), run_id="quickstart-2"))
    records = [*runs.speed(lengths=(512, 1024)), *runs.speed(causal=True, lengths=(512,))]
    found = gather.gather([runs.write_run(tmp_path / "run", records), again])
    rows = approximation_errors.add_errors(select.add_labels(found.rows))
    places = split_by_config(find_timed(rows), {"quickstart-2": "again"})
    assert [place["causal"] for place, _ in places] == [False, True]
    curves = {curve.label: curve for curve in places[0][1]}
    full, window = curves["full"], curves["sliding_window:window=128"]
    assert [point.length for point in full.points] == [512, 1024]
    assert [point.speedup and point.speedup.value for point in full.points] == [1.0, 1.0]
    once = window.points[0].speedup
    assert once is not None
    assert once.low is not None
    low, high = 0.97, 1.04  # the row's interval
    assert once.low == pytest.approx(once.value * math.sqrt(low / high)), "no wider than that of its only row"
    both = window.points[1]
    assert both.speedup is not None
    assert both.speedup.low is not None
    assert len(both.sources) == len({source.run_id for source in both.sources}) == 2
    assert [source.run for source in both.sources] == ["quickstart-1", "again"]
    assert both.spread == ""
    assert math.log(both.speedup.value / both.speedup.low) >= 0.03
