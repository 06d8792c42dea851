"""Which quantities of two runs are compared: speedups or latencies; and disturbances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare_runs import LINEAR, change_of, compare_rows, key, measured, measured_in_pairs, record, steady


def test_by_speedup_a_slower_machine_is_no_regression_of_a_variant() -> None:
    old = [record("full", 64, steady(10)), record("linear", 64, steady(2))]
    new = [record("full", 64, steady(13)), record("linear", 64, steady(2.6))]
    change = change_of(compare_rows(old, new))
    assert (change.by, change.kind) == ("speedup", "same")
    assert change.ratio == pytest.approx(1)
    assert (change.base_ms, change.new_ms) == (pytest.approx(2, rel=0.01), pytest.approx(2.6, rel=0.01))
    absolute = change_of(compare_rows(old, new, by="latency"))
    assert (absolute.by, absolute.kind) == ("latency", "slower")


def test_the_baseline_itself_is_compared_by_latency() -> None:
    old = [record("full", 64, steady(10)), record("linear", 64, steady(2))]
    change = change_of(compare_rows(old, old, tolerance=0.02), key("full", 64).partition("#")[0])
    assert (change.by, change.kind) == ("latency", "inconclusive")  # the drift between runs hides 2%


UNPAIRED: dict[str, dict[str, Any]] = {
    "no baseline in the group": {"speedup": None},
    "no interval on it": {"speedup_low": None, "speedup_high": None},
    "measured by another session": {"run_id": "earlier"},
    "measured in other processes": {"process": [9] * 8},
    "failed": {"status": "error", "reason": "boom"},
}


@pytest.mark.parametrize("known", UNPAIRED.values(), ids=UNPAIRED)
def test_without_a_common_baseline_latencies_are_compared(known: dict[str, Any]) -> None:
    usual = [record("full", 64, steady(10)), record("linear", 64, steady(2))]
    other = [record("full", 64, steady(10), **known), record("linear", 64, steady(2))]
    assert change_of(compare_rows(usual, usual)).by == "speedup"
    assert change_of(compare_rows(usual, other)).by == "latency"


def test_different_baselines_are_not_compared() -> None:
    dense = record("dense", 64, steady(10), speedup=1.0, speedup_low=1.0, speedup_high=1.0)
    linear = record("linear", 64, steady(2))
    assert change_of(compare_rows([dense, linear], [dense, linear])).by == "speedup"
    assert change_of(compare_rows([dense, linear], [record("full", 64, steady(10)), linear])).by == "latency"
    two = [dense, record("full", 64, steady(10)), linear]
    assert change_of(compare_rows(two, two)).by == "latency"  # which of the two was meant?


# -- pairs of process runs -----------------------------------------------------------------------------------------


def _timed(variant: str, ms: list[float], started: list[float], **known: Any) -> Any:
    """A record with two rounds in each process run, which started at these times."""
    values = [x for value in ms for x in (value, value)]
    one = record(variant, 64, values, process=[n for n in range(len(ms)) for _ in range(2)], **known)
    one.samples["started"] = started
    one.row.rounds = len(values)
    return one


TIMES = [10.0, 13.0, 9.0, 11.0]  # of a machine whose speed changes from one process run to the next


def test_alternating_process_runs_are_compared_in_pairs() -> None:
    old = [_timed("full", TIMES, [0, 3, 4, 7]), _timed("linear", TIMES, [0, 3, 4, 7])]
    new = [_timed("full", TIMES, [1, 2, 5, 6]), _timed("linear", [1.1 * ms for ms in TIMES], [1, 2, 5, 6])]
    slower, same = change_of(compare_rows(old, new)), change_of(compare_rows(old, new), key("full", 64)[:-2])
    assert (slower.kind, slower.by, slower.pairs) == ("slower", "latency", 4)
    assert slower.ratio == pytest.approx(1 / 1.1)
    assert (same.kind, same.pairs) == ("same", 4)  # the drift between runs does not count


@pytest.mark.parametrize(
    "started",
    [
        [4, 5, 6, 7],  # one run after the other
        [1, 2, 3, 4],  # the pairs overlap
        [0, 1, 2, 3],  # the same process runs
        [],  # of a run that stored no times
    ],
)
def test_process_runs_that_do_not_alternate_are_not_paired(started: list[float]) -> None:
    old, new = _timed("linear", TIMES, [0, 1, 2, 3]), _timed("linear", TIMES, started)
    assert change_of(compare_rows([old], [new])).pairs is None


def test_only_process_runs_that_both_have_are_paired() -> None:
    old, new = _timed("linear", TIMES, [0, 2, 4, 6]), _timed("linear", TIMES[:3], [1, 3, 5])
    assert change_of(compare_rows([old], [new])).pairs == 3
    assert change_of(compare_rows([old], [_timed("linear", TIMES[:2], [1, 3])])).pairs is None  # too few


def test_disturbed_pairs_are_compared_because_both_of_a_pair_are_disturbed() -> None:
    busy = {"contaminated": 8}
    old, new = _timed("linear", TIMES, [0, 2, 4, 6], **busy), _timed("linear", TIMES, [1, 3, 5, 7], **busy)
    assert change_of(compare_rows([old], [new])).kind == "same"
    new.samples["started"] = [10, 11, 12, 13]
    assert change_of(compare_rows([old], [new])).reason == "disturbed: 8 of 8 rounds in base, 8 of 8 in new"


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "disturbed"), [(0.08, 0.0), (0.05, 0.1)])
def test_pairs_show_a_slowdown_of_a_tenth_nine_times_of_ten(noise: float, disturbed: float) -> None:
    rng, repeats = np.random.default_rng(0), 60
    detected = families = 0
    for _ in range(repeats):
        runs = measured_in_pairs(rng, noise=noise, disturbed=disturbed, slowdown=0.1)
        slower, *others = compare_rows(*runs).changes
        assert slower.name == LINEAR
        detected += slower.kind == "slower"
        families += any(change.kind in ("slower", "faster") for change in others)
    assert detected >= 0.9 * repeats
    assert families <= 0.05 * repeats + 3 * (0.05 * 0.95 * repeats) ** 0.5  # family-wise, of eleven cases


# -- baselines and disturbances ------------------------------------------------------------------------------------


def test_variants_with_other_key_value_heads_share_the_group() -> None:
    name = "tiny/all/decode/gqa:kv_heads=2/n64-b1-h4-kv2-d64/float32-cpu-t1-causal#1"
    base = "tiny/all/decode/full/n64-b1-h4-kv4-d64/float32-cpu-t1-causal#2"
    both = [record("full", 64, steady(4), case_key=base), record("gqa:kv_heads=2", 64, steady(1), case_key=name)]
    assert change_of(compare_rows(both, both), name.partition("#")[0]).by == "speedup"


@pytest.mark.parametrize(("before", "by"), [(8, "speedup"), (1, "latency")])
def test_baselines_with_different_key_value_heads_are_not_compared(before: int, by: str) -> None:
    """If a baseline ran with several, earlier versions paired with the first of them."""
    key_of = "tiny/all/decode/{}/n64-b1-h8-kv{}-d64/float32-cpu-t1-causal#1".format
    full = [record("full", 64, steady(4), case_key=key_of("full", heads), kv_heads=heads) for heads in (before, 8)]
    linear = record("linear", 64, steady(1), case_key=key_of("linear", 8), kv_heads=8)
    found = compare_rows([full[0], linear], [full[1], linear])
    assert change_of(found, key_of("linear", 8).partition("#")[0]).by == by


def test_rounds_are_paired_within_each_process() -> None:
    full = record("full", 64, [10, 11, 12, 20, 21, 22], process=[0, 0, 0, 1, 1, 1])
    short = record("linear", 64, [1, 1.1, 2, 2.1], process=[0, 0, 1, 1])
    change = change_of(compare_rows([full, short], [full, short]))
    assert change.by == "speedup"
    assert change.low == pytest.approx(1)  # each ratio is exactly 0.1: not so if 20 met 2.1, say
    assert change.high == pytest.approx(1)


def test_drift_widens_latencies_only() -> None:
    old, new = measured(np.random.default_rng(8)), measured(np.random.default_rng(9))
    for by, wider in (("latency", True), ("speedup", False)):
        little, much = (change_of(compare_rows(old, new, by=by, drift=d)) for d in (0.0, 0.1))  # type: ignore[arg-type]
        assert ((much.high or 0) > (little.high or 0)) == wider


@pytest.mark.parametrize("by", ["speedup", "latency"])
def test_latency_and_speedup_are_both_reported(by: Any) -> None:
    old = [record("full", 64, steady(10)), record("linear", 64, steady(2), speedup=5.0)]
    new = [record("full", 64, steady(20)), record("linear", 64, steady(2), speedup=10.0)]
    change = change_of(compare_rows(old, new, by=by))
    assert (change.base_speedup, change.new_speedup) == (5, 10)
    assert (change.base_ms, change.new_ms) == (pytest.approx(2, rel=0.01), pytest.approx(2, rel=0.01))
    other = [record("dense", 64, steady(9), speedup=1.0, speedup_low=1.0, speedup_high=1.0), new[1]]
    assert change_of(compare_rows(old, other, by=by)).base_speedup is None  # over another baseline
    assert change_of(compare_rows(old, new, by=by), key("full", 64).partition("#")[0]).base_speedup is None


# -- disturbed rounds ----------------------------------------------------------------------------------------------

DISTURBED = [
    ((24, 3), "inconclusive"), ((8, 1), "inconclusive"),  # one more than the other
    ((24, 22), "inconclusive"), ((13, 12), "inconclusive"),  # mostly
    ((4, 6), "slower"), ((12, 12), "slower"),
]  # fmt: skip


@pytest.mark.parametrize("variant", ["linear", "full"])
@pytest.mark.parametrize(("disturbed", "kind"), DISTURBED)
def test_mostly_or_unequally_disturbed_cases_are_inconclusive(
    disturbed: tuple[int, int], kind: str, variant: str
) -> None:
    """Also if the baseline of a compared speedup was disturbed."""
    old = [record("full", 64, steady(10)), record("linear", 64, steady(2))]
    new = [record("full", 64, steady(10)), record("linear", 64, steady(4))]
    for side, count in zip((old, new), disturbed, strict=True):
        row = next(one.row for one in side if one.row.variant == variant)
        row.rounds, row.contaminated = 24, count
    change = change_of(compare_rows(old, new))
    assert (change.kind, change.low is None, change.blind) == (kind, False, kind == "inconclusive")
    a, b = disturbed
    disturbance = f"disturbed: {a} of 24 rounds in base, {b} of 24 in new"
    reason = disturbance if variant == "linear" else f"its baseline was {disturbance}"
    assert change.reason == (reason if kind == "inconclusive" else None)
    if variant == "full":
        assert change_of(compare_rows(old, new, by="latency")).kind == "slower"  # without the baseline


def test_inconclusive_cases_do_not_widen_other_intervals() -> None:
    old, new = [measured(np.random.default_rng(seed), groups=1) for seed in (10, 11)]
    more = [record("linear", 64 << i, steady(2), contaminated=8) for i in range(1, 20)]
    for one in more:
        one.row.rounds = 8
    alone, together = change_of(compare_rows(old, new)), change_of(compare_rows(old + more, new + more))
    assert (alone.low, alone.high) == (together.low, together.high)
