"""Comparisons of two runs: error rates, detection, and cases that cannot be compared."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from compare_runs import failed, key, measured, record, run, steady
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.results.compare import CHANGE_KINDS, Change, Comparison, compare
from efficient_attn.results.rows import Record

OPPOSITE = {"faster": "slower", "slower": "faster", "broken": "fixed", "fixed": "broken"}
LINEAR = key("linear", 64).partition("#")[0]


def _compare(old: list[Record], new: list[Record], **options: Any) -> Comparison:
    return compare(run(old, "a"), run(new, "b"), **options)


def _of(comparison: Comparison, name: str = LINEAR) -> Change:
    (change,) = [c for c in comparison.changes if c.name == name]
    return change


def _called(comparison: Comparison) -> list[Change]:
    return [c for c in comparison.changes if c.kind in ("faster", "slower")]


# -- error rates ---------------------------------------------------------------------------------------------------

NOISES: dict[str, tuple[Any, dict[str, float]]] = {
    "while the machine drifts more than a latency is allowed to": ("speedup", {"machine": 0.05}),
    "with processes that differ": ("speedup", {"machine": 0.05, "by_process": 0.02, "noise": 0.005}),
    "with the drift that latencies are allowed": ("latency", {"machine": 0.02, "shared": 0.01}),
}


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("by", "noise"), NOISES.values(), ids=NOISES)
def test_equal_runs_rarely_differ(by: Any, noise: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    wrong = total = families = 0
    for _ in range(200):
        comparison = _compare(measured(rng, groups=10, **noise), measured(rng, groups=10, **noise), by=by)
        reported = [c.kind in ("faster", "slower") for c in comparison.changes if c.by == by]
        total, wrong, families = total + len(reported), wrong + sum(reported), families + any(reported)
    assert total == 200 * (10 if by == "speedup" else 20)
    assert wrong <= 0.02 * total
    assert families <= 0.05 * 200 + 3 * math.sqrt(0.05 * 0.95 * 200)  # family-wise


def test_a_single_case_keeps_its_confidence() -> None:
    rng = np.random.default_rng(2)
    pairs = ([record("linear", 64, np.exp(rng.normal(0, 0.03, 20)).tolist()) for _ in range(2)] for _ in range(2000))
    wrong = sum(len(_called(_compare([a], [b], drift=0.0))) for a, b in pairs)
    assert wrong <= 0.05 * 2000 + 3 * math.sqrt(0.05 * 0.95 * 2000)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("factor", "kind"), [(1.05, "slower"), (1 / 1.05, "faster")])
def test_five_percent_are_detected_despite_noise_and_drift(factor: float, kind: str) -> None:
    rng = np.random.default_rng(3)
    seen: Counter[str] = Counter()
    for _ in range(100):
        old = measured(rng, groups=5, machine=0.05)
        new = measured(rng, groups=5, machine=0.05, factors={"linear": factor})
        seen.update(c.kind for c in _compare(old, new).changes if "/linear/" in c.name)
    assert seen[kind] >= 0.95 * seen.total()
    assert seen.total() == 500


def test_the_interval_covers_the_true_ratio() -> None:
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(1000):
        new = measured(rng, groups=1, factors={"linear": 0.8}, machine=0.1)
        change = _of(_compare(measured(rng, groups=1, machine=0.1)[1:2], new[1:2], by="latency", drift=0.1))
        assert change.low is not None
        assert change.high is not None
        hits += change.low <= 1.25 <= change.high
    assert hits / 1000 == pytest.approx(0.95, abs=0.025)


# -- properties ----------------------------------------------------------------------------------------------------

times = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(times, times), min_size=1, max_size=4), st.sampled_from(["speedup", "latency"]))
def test_swapping_the_runs_inverts_changes(groups: list[tuple[list[float], list[float]]], by: Any) -> None:
    def side(at: int) -> list[Record]:
        records = [record("linear", 64 << i, group[at]) for i, group in enumerate(groups)]
        return records + [record("full", 64 << i, group[1 - at]) for i, group in enumerate(groups)]

    there, back = _compare(side(0), side(1), by=by), _compare(side(1), side(0), by=by)
    for change, other in zip(there.changes, back.changes, strict=True):
        assert OPPOSITE.get(change.kind, change.kind) == other.kind
        assert change.by == other.by
        assert (change.ratio or 0) * (other.ratio or 0) == pytest.approx(1)
        if change.low is not None and change.low > 1e-100:
            assert change.low * (other.high or 0) == pytest.approx(1)


@pytest.mark.parametrize("by", ["speedup", "latency"])
def test_more_groups_widen_the_intervals(by: Any) -> None:
    old, new = measured(np.random.default_rng(5), groups=6), measured(np.random.default_rng(6), groups=6)
    widths = []
    for groups in (1, 2, 6):
        change = _of(_compare(old[: 2 * groups], new[: 2 * groups], by=by))
        widths.append((change.high or 0) / (change.low or 1))
    assert widths == sorted(set(widths))


def test_the_verdict_follows_from_the_interval() -> None:
    rng = np.random.default_rng(7)
    new = measured(rng, groups=6, factors={"linear": 1.03})
    for change in _compare(measured(rng, groups=6), new).changes:
        assert change.low is not None
        assert change.high is not None
        if change.kind == "slower":
            assert change.high < 1
        if change.kind == "same":
            assert 1 / 1.1 <= change.low <= change.high <= 1.1


def test_differences_below_the_margin_are_ignored() -> None:
    old = [record("full", 64, steady(10)), record("linear", 64, steady(2))]
    new = [record("full", 64, steady(10)), record("linear", 64, steady(2.06))]
    assert _of(_compare(old, new)).kind == "slower"
    assert _of(_compare(old, new, margin=0.05)).kind == "same"


def test_the_latest_record_of_a_case_counts_whatever_its_digest() -> None:
    old = [record("linear", 64, steady(2))]
    new = [failed("linear", 64), record("linear", 64, steady(4), digest="changed"), failed("linear", 64, "interrupted")]
    assert _of(_compare(old, new)).kind == "slower"


# -- failures and missing cases ------------------------------------------------------------------------------------


def test_a_single_round_is_inconclusive_with_a_reason() -> None:
    change = _of(_compare([record("linear", 64, [1.0])], [record("linear", 64, steady(5))]))
    assert (change.kind, change.reason) == ("inconclusive", "too few rounds to compare")
    assert change.ratio == pytest.approx(0.2, rel=0.01)
    assert (change.low, change.high) == (None, None)


def test_rounds_that_only_show_differences_of_orders_of_magnitude_are_too_few() -> None:
    groups = [record("linear", 64 << i, [1e-6, 1e6]) for i in range(8)]
    for change in _compare(groups, groups).changes:
        assert (change.kind, change.reason) == ("inconclusive", "too few rounds to compare")
        assert (change.low, change.high, change.least, change.blind) == (None, None, None, True)


def test_cases_of_only_one_run_are_listed() -> None:
    shared = record("linear", 64, steady(2))
    comparison = _compare([shared, record("full", 64, steady(9))], [shared, record("linear", 128, steady(4))])
    assert comparison.only_in_base == (key("full", 64)[:-2],)
    assert comparison.only_in_new == (key("linear", 128)[:-2],)
    assert [c.name for c in comparison.changes] == [LINEAR]


def test_skipped_cases_are_ignored() -> None:
    good = [record("full", 64, steady(9)), record("linear", 64, steady(2))]
    comparison = _compare(good, [good[0], failed("linear", 64, "skipped", "no CUDA device")])
    assert comparison.only_in_base == (LINEAR,)
    assert not comparison.regressed


@pytest.mark.parametrize("status", ["oom", "crashed", "timeout", "invalid", "error", "unsupported"])
def test_cases_that_no_longer_run_are_broken(status: str) -> None:
    good = [record("full", 64, steady(9)), record("linear", 64, steady(2))]
    bad = [good[0], failed("linear", 64, status, "so it is")]
    comparison = _compare(good, bad)
    assert (_of(comparison).kind, _of(comparison).reason) == ("broken", f"{status}: so it is")
    assert comparison.regressed
    back = _compare(bad, good)
    assert (_of(back).kind, back.regressed) == ("fixed", False)
    both = _compare(bad, bad)
    assert both.failing == (LINEAR,)
    assert [c.name for c in both.changes] == [key("full", 64)[:-2]]


def test_fidelity_is_not_timed_but_may_break() -> None:
    good = [record("linear", 64, task="fidelity", mode=None), record("full", 64, steady(1))]
    assert [c.name for c in _compare(good, good).changes] == [key("full", 64)[:-2]]
    assert _of(_compare(good, [failed("linear", 64, "invalid"), good[1]])).kind == "broken"


def test_memory_that_changed_is_reported_exactly() -> None:
    def side(peak: int) -> list[Record]:
        return [record("linear", 64, steady(2), peak_memory_bytes=peak)]

    change = _of(_compare(side(1000), side(1100)))
    assert (change.base_bytes, change.new_bytes) == (1000, 1100)
    assert _of(_compare(side(1000), side(1010))).base_bytes is None
    assert _of(_compare(side(0), side(1010))).base_bytes is None


def test_counts_have_every_kind() -> None:
    good = [record("full", 64, steady(9)), record("linear", 64, steady(2))]
    comparison = _compare(good, [good[0], failed("linear", 64)])
    assert tuple(comparison.counts) == CHANGE_KINDS
    assert comparison.counts["broken"] == 1
