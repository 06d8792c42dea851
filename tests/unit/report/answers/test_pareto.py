"""Pareto fronts: which points are dominated, and which cannot be decided within their intervals."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_runs as runs
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.report import approximation_errors, gather, select
from efficient_attn.report.answers.decision_table import make_decision_tables
from efficient_attn.report.answers.pareto import ParetoPoint, RankedPoint, classify_points, dominates, list_points
from efficient_attn.results.stats import Estimate


def point(label: str, cost: float, loss: float, *, cost_wide: float = 0.0, loss_wide: float = 0.0) -> ParetoPoint:
    return ParetoPoint(label, _around(cost, cost_wide), _around(loss, loss_wide))


def _around(value: float, wide: float) -> Estimate:
    return Estimate(value, value - wide, value + wide) if wide else Estimate(value)


def standings(*points: ParetoPoint) -> dict[str, str]:
    return {placed.point.label: placed.status for placed in classify_points(points)}


def test_slower_points_with_a_larger_error_are_dominated() -> None:
    assert standings(point("a", 1, 1), point("b", 2, 2), point("c", 3, 0.5)) == {
        "a": "front",
        "b": "dominated",
        "c": "front",
    }


def test_overlapping_intervals_are_unclear() -> None:
    a, b = point("a", 1, 1, cost_wide=0.6), point("b", 2, 2, cost_wide=0.6)
    assert classify_points([a, b])[1] == RankedPoint(b, "unclear", ("a",))
    assert standings(a, point("b", 2, 2, cost_wide=0.3))["b"] == "dominated"
    assert standings(a, point("b", 2, 1.1, cost_wide=0.3, loss_wide=0.2))["b"] == "unclear"


def test_equal_exact_costs_are_decided_by_the_error() -> None:
    assert standings(point("a", 1, 0), point("b", 2, 0)) == {"a": "front", "b": "dominated"}
    assert standings(point("a", 1, 0), point("b", 1, 0)) == {"a": "front", "b": "front"}


numbers, widths = st.floats(0.1, 10), st.one_of(st.just(0.0), st.floats(0.01, 3))
drawn = st.lists(st.tuples(numbers, numbers, widths, widths), min_size=1, max_size=9).map(
    lambda found: [point(str(i), cost, loss, cost_wide=a, loss_wide=b) for i, (cost, loss, a, b) in enumerate(found)]
)


@given(drawn)
def test_no_point_dominates_a_point_of_the_front(points: list[ParetoPoint]) -> None:
    placed = classify_points(points)
    kept = {p.point.label: p.point for p in placed if p.status != "dominated"}
    assert kept
    for each in placed:
        assert (each.status == "dominated") == any(dominates(other, each.point) for other in points)
        if each.status == "dominated":
            assert any(dominates(other, each.point) for other in kept.values()), "beaten by what is itself beaten only"
        if each.status == "front":
            assert not any(
                p.cost.value < each.point.cost.value and p.error.value < each.point.error.value for p in points
            )


@given(drawn)
def test_points_without_intervals_are_never_unclear(points: list[ParetoPoint]) -> None:
    sharp = [ParetoPoint(p.label, Estimate(p.cost.value), Estimate(p.error.value)) for p in points]
    assert all(placed.status != "unclear" for placed in classify_points(sharp))


def test_points_of_a_table_include_the_baseline(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(), *runs.fidelity()])
    (board,) = make_decision_tables(approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows)))
    full, *others = list_points(board, "time")
    assert (full.label, full.cost.value, full.error.value) == ("full", 1.0, 0.0)
    assert {p.label for p in others} == {"sliding_window:window=128", "linear"}, "performer's loss is not known"
    linear = next(p for p in others if p.label == "linear")
    speedup = board.decisions[0].speedups[8192]
    assert (linear.cost.low, linear.cost.high) == pytest.approx((1 / (speedup.high or 0), 1 / (speedup.low or 0)))
    assert list_points(board, "state") == []
    assert len(list_points(board, "memory")) == 3
