"""Bounds of comparisons: their coverage, and differences that are detected or whose case is blind."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compare_runs import LINEAR, change_of, compare_rows, key, measured, record, steady

from efficient_attn.results.exchange import list_round_values


def test_holm_reports_a_difference_that_bonferroni_would_not() -> None:
    """Holm's procedure corrects for fewer cases after each rejection."""
    rng = np.random.default_rng(12)
    clear = [record("linear", 64 << i, np.exp(rng.normal(i, 0.01, 20)).tolist()) for i in range(40)]
    doubled = [record("linear", 64 << i, (2 * np.exp(rng.normal(i, 0.01, 20))).tolist()) for i in range(40)]
    faint = record("faint", 64, np.exp(rng.normal(0, 0.05, 20)).tolist())
    values = [v * math.exp(0.06) for v in list_round_values(faint)]
    less = record("faint", 64, values)
    name = key("faint", 64).partition("#")[0]
    alone = change_of(compare_rows([faint], [less], drift=0.0), name)
    together = change_of(compare_rows([*clear, faint], [*doubled, less], drift=0.0), name)
    lost = change_of(compare_rows([*clear, faint], [*clear, less], drift=0.0), name)
    assert (alone.kind, together.kind, lost.kind) == ("slower", "slower", "inconclusive")
    assert together.low == pytest.approx(alone.low)


@pytest.mark.slow
def test_differences_of_the_tolerance_are_detected_or_blind() -> None:
    rng = np.random.default_rng(13)
    missed = detected = 0
    for _ in range(150):
        noise = float(rng.uniform(0.005, 0.06))
        old = measured(rng, groups=4, noise=noise)
        new = measured(rng, groups=4, noise=noise, factors={"linear": 1.1})
        kinds = [(c.kind, c.blind) for c in compare_rows(old, new, tolerance=0.1).changes if "/linear/" in c.name]
        detected += sum(kind == "slower" for kind, _ in kinds)
        missed += sum(kind != "slower" and not blind for kind, blind in kinds)
    assert detected > 150
    assert missed <= 0.02 * 600


@pytest.mark.sampled(6)
@pytest.mark.slow
def test_the_bound_holds_for_all_cases_at_once() -> None:
    rng = np.random.default_rng(14)
    wrong = 0
    for _ in range(200):
        old, new = (measured(rng, groups=10, factors={"linear": f}) for f in (1.0, 1.01))
        bound = compare_rows(old, new, drift=0.0, margin=0.0).slower_by_at_most
        assert bound is not None
        wrong += bound < 0.01
    assert wrong <= 0.05 * 200


def test_a_wider_tolerance_makes_more_the_same_and_fewer_blind() -> None:
    old, new = measured(np.random.default_rng(15), groups=6), measured(np.random.default_rng(16), groups=6)
    same, blind = [], []
    for tolerance in (0.02, 0.05, 0.5):
        comparison = compare_rows(old, new, tolerance=tolerance)
        same.append(comparison.counts["same"])
        blind.append(len(comparison.blind))
        assert all(c.least is not None and c.least > tolerance for c in comparison.changes if c.blind)
    assert same == sorted(same)
    assert same[0] < same[-1] == 12
    assert blind == sorted(blind, reverse=True)
    assert blind[0] > blind[-1] == 0


def test_detected_differences_are_not_blind_and_bound_the_slowdown() -> None:
    old, new = [record("linear", 64, steady(2))], [record("linear", 64, steady(4))]
    comparison = compare_rows(old, new)
    assert (change_of(comparison).kind, comparison.blind) == ("slower", ())
    assert 1 < (comparison.slower_by_at_most or 0) < 1.2
    assert compare_rows(new, old).slower_by_at_most == 0  # all became faster for sure


def test_if_all_cases_are_blind_there_is_no_bound() -> None:
    comparison = compare_rows([record("linear", 64, [1.0])], [record("linear", 64, [1.0])])
    assert (comparison.blind, comparison.slower_by_at_most) == ((LINEAR,), None)
    assert change_of(comparison).least is None


def test_a_run_compared_with_itself_is_recognized() -> None:
    old, new = [record("linear", 64, steady(2))], [record("linear", 64, steady(2.01))]
    assert compare_rows(old, old).itself
    assert not compare_rows(old, new).itself
    assert not compare_rows(old, [*old, record("full", 64, steady(9))]).itself
