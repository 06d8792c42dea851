"""Measurements with errors: intervals, p-values and half-widths agree with each other on both scales."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.report.claims.measurement import (
    BASIS_NO_ERROR,
    BASIS_SINGLE,
    Measurement,
    average_measurements,
    fit_power,
)
from efficient_attn.results.differences import EXACT_DEGREES
from efficient_attn.results.stats import Mean

values, errors = st.floats(-3, 3), st.floats(0.001, 1)
risks, degrees = st.floats(1e-4, 0.2), st.integers(1, 40)


@st.composite
def measured(draw: st.DrawFn) -> Measurement:
    mean = Mean(draw(values), draw(errors), draw(degrees))
    return Measurement.of_mean(mean, ("a",), log_scale=draw(st.booleans()), basis="raw rounds")


edges = st.tuples(st.floats(0.1, 2), st.floats(0.1, 2)).map(sorted) | st.floats(0.1, 2).map(lambda x: [x, math.inf])


@settings(max_examples=40, deadline=None)
@given(measured(), edges, risks)
def test_an_interval_decides_if_its_p_value_is_below_the_risk(m: Measurement, ends: list[float], risk: float) -> None:
    side, p = m.side(*ends, risk), m.p_value(*ends)
    if p < risk * 0.999:
        assert side == ("inside" if m.margin(*ends) > 0 else "outside")
    elif p > risk * 1.001:
        assert side == "open"


@settings(max_examples=40, deadline=None)
@given(measured(), edges, risks, st.floats(0.1, 1))
def test_a_narrower_interval_only_decides_more(m: Measurement, ends: list[float], risk: float, share: float) -> None:
    narrow = Measurement(
        m.value, m.error_below * share, m.error_above * share, m.degrees, m.log_scale, m.basis, m.cases
    )
    before, after = m.side(*ends, risk), narrow.side(*ends, risk)
    assert after == before or before == "open"


@settings(max_examples=40, deadline=None)
@given(measured(), edges, risks)
def test_the_half_width_that_would_decide_does(m: Measurement, ends: list[float], risk: float) -> None:
    own, needed = m.half_widths(*ends, risk)
    assert own is not None
    assert (own < needed * 0.999) <= (m.side(*ends, risk) != "open")
    assert (own > needed * 1.001 + 1e-9) <= (m.side(*ends, risk) == "open")


def test_counts_are_exact_and_single_times_have_no_error() -> None:
    count = Measurement.of_count(8.0, ("a",))
    assert (count.basis, count.side(8.0, 8.0, 0.05), count.p_value(8.0, 9.0)) == (BASIS_NO_ERROR, "inside", 0.0)
    assert Measurement.of_count(0.0, ("a",)).side(0.1, 1, 0.05) == "outside"
    lone = Measurement.of_mean(Mean(1.0, math.inf, 0), ("a",), log_scale=True, basis="x")
    assert (lone.basis, lone.interval(0.05), lone.p_value(0, 1), lone.side(0, 9, 0.05)) == (
        BASIS_SINGLE,
        None,
        1.0,
        "open",
    )
    assert lone.half_widths(0, 9, 0.05)[0] is None


def test_positive_intervals_are_widened_on_the_log_scale() -> None:
    m = Measurement.of_interval(4.0, 2.0, 8.0, ("a",))
    assert m.interval(0.05) == pytest.approx((2.0, 8.0))
    low, high = m.interval(0.001) or (0, 0)
    assert low * high == pytest.approx(16)
    assert low < 1.5
    none = Measurement.of_interval(0.0, 0.0, 0.1, ("a",))  # no question of twenty was right
    assert (none.log_scale, none.interval(0.001)) == (False, (0.0, pytest.approx(0.168, abs=0.001)))


@settings(max_examples=40, deadline=None)
@given(st.lists(measured(), min_size=2, max_size=6), st.randoms())
def test_the_mean_does_not_depend_on_the_order_of_rows(several: list[Measurement], random) -> None:
    mixed = random.sample(several, len(several))
    assert average_measurements(several) == average_measurements(mixed)


@settings(max_examples=40, deadline=None)
@given(st.floats(-1, 3), st.floats(0.001, 0.1))
def test_a_power_is_found_with_the_error_of_its_points(power: float, error: float) -> None:
    lengths = [256, 512, 1024, 2048]
    points = [
        Measurement.of_mean(Mean(1 + power * math.log(n), error, 7), ("a",), log_scale=True, basis="raw rounds")
        for n in lengths
    ]
    found = fit_power(lengths, points)
    assert found.value == pytest.approx(power, abs=1e-9)
    spread = sum((math.log2(n) - 9.5) ** 2 for n in lengths)
    assert found.error_below == pytest.approx(error / math.log(2) / math.sqrt(spread))
    assert found.degrees >= 7
    assert fit_power(lengths, points, drift=0.02).error_below > found.error_below
    assert fit_power(lengths[::-1], points[::-1]) == found


def test_a_line_through_counts_is_exact_and_through_single_times_unknown() -> None:
    counts = [Measurement.of_count(3.0 * n, ("a",)) for n in (1, 2, 4)]
    found = fit_power([1, 2, 4], counts)
    assert (found.value, found.error_below, found.degrees) == (pytest.approx(1), 0, EXACT_DEGREES)
    lone = Measurement.of_mean(Mean(1.0, math.inf, 0), ("a",), log_scale=True, basis="x")
    assert fit_power([1, 2, 4], [*counts[:2], lone]).interval(0.05) is None
