"""Evidence for claims: which rows are used, how they are paired, and where their errors come from."""

from __future__ import annotations

import math
from typing import Any

import pytest
from compare_runs import record, steady
from ledgers import disturb, entry, evidence, pair

from efficient_attn.report.claims.evidence import ClaimTests, gather_tests
from efficient_attn.report.claims.ledger import load_ledger
from efficient_attn.report.claims.measurement import (
    BASIS_INTERVALS,
    BASIS_NO_ERROR,
    BASIS_ROUNDS,
    BASIS_SINGLE,
    BASIS_SPREAD,
    Measurement,
)
from efficient_attn.results.rows import Record

RATIO = {"value": "latency_ms", "against": {"variant": "full"}, "at_most": 0.9}
FAST = {"value": "speedup", "at_least": 2}
GROWS = {"value": "latency_ms", "over": "seq_len", "between": [0.8, 1.2]}


def _gather(rule: dict[str, Any], *records: Record, **known: Any) -> ClaimTests:
    return gather_tests(entry(rule, **known).claim, evidence(*records))


def _only(found: ClaimTests) -> Measurement:
    ((test,),) = found.tests.values()
    return test


@pytest.mark.parametrize(("rule", "value"), [(FAST, 5.0), (RATIO, 0.2)])
def test_times_are_paired_round_by_round(rule: dict[str, Any], value: float) -> None:
    test = _only(_gather(rule, *pair(5.0)))
    assert (test.basis, test.plain) == (BASIS_ROUNDS, pytest.approx(value, rel=0.02))
    assert 0 < test.error_below < 0.05


def test_a_speedup_without_its_baseline_has_the_rows_own_interval() -> None:
    alone = record("linear", 64, speedup=5.0, speedup_low=4.5, speedup_high=5.6)
    assert _only(_gather(FAST, alone)).basis == BASIS_INTERVALS
    assert _only(_gather(FAST, record("linear", 64, speedup=5.0))).basis == BASIS_SINGLE


def test_intervals_are_found_by_name_or_by_the_rule() -> None:
    row = record("linear", 64, accuracy=0.5, extra={"accuracy_low": 0.4, "accuracy_high": 0.6, "a": 0.1, "b": 0.9})
    widened = _only(_gather({"value": "accuracy", "at_least": 0.2}, row))
    assert widened.interval(0.05) == (pytest.approx(0.4), pytest.approx(0.6))
    named = _only(_gather({"value": "accuracy", "at_least": 0.2, "interval": ["speed.a", "speed.b"]}, row))
    assert named.interval(0.05) == (pytest.approx(0.1), pytest.approx(0.9))


def test_rows_outside_the_regime_are_counted_not_used() -> None:
    regime = {"seq_len": {"at_least": 128}}
    assert _gather(FAST, *pair(5.0), regime=regime).out_of_regime == 1
    assert _gather(FAST, *pair(5.0), regime=regime).tests == {}
    assert _gather(FAST, *pair(5.0), *pair(6.0, length=128), regime=regime).out_of_regime == 1


def test_disturbed_rows_are_left_out_of_times_alone() -> None:
    noisy = disturb(*pair(5.0, peak_memory_bytes=64))
    assert (_gather(FAST, *noisy).tests, _gather(FAST, *noisy).disturbed) == ({}, 1)
    assert _gather(RATIO, *noisy).tests == {}
    assert _only(_gather({"value": "peak_memory_bytes", "at_most": 9}, *noisy)).basis == BASIS_NO_ERROR


@pytest.mark.parametrize("column", ["seq_len", "run_id", "head_dim", "machine", "causal"])
def test_rows_of_different_configurations_are_not_paired(column: str) -> None:
    full, linear = pair(5.0)
    setattr(full.row, column, 128)
    assert _gather(RATIO, full, linear).tests == {}


def test_pairs_differ_only_in_the_columns_of_against() -> None:
    rule = {"value": "latency_ms", "against": {"seq_len": 64}, "at_most": 3}
    records = [*pair(5.0), *pair(2.5, length=128)]
    test = _only(_gather(rule, *records, rows={"variant": "linear", "seq_len": 128}))
    assert test.plain == pytest.approx(2, rel=0.02)
    assert test.error_below > 0.02  # two cells were not timed side by side: they drift


def test_zeros_have_no_ratio() -> None:
    rule = {"value": "state_bytes", "against": {"variant": "full"}, "at_most": 2}
    records = record("full", 64, state_bytes=0), record("linear", 64, state_bytes=4)
    assert _gather(rule, *records).tests == {}


def test_a_line_is_fitted_to_each_series() -> None:
    records = [record("linear", n, steady(n / 64)) for n in (64, 128, 256)]
    assert _only(_gather(GROWS, *records)).plain == pytest.approx(1, abs=0.02)
    others = [record("linear", n, steady(n / 64), head_dim=3, suite="other") for n in (64, 128)]
    for other in others:
        other.row.case_key = f"other/{other.row.case_key}"
    (tests,) = _gather(GROWS, *records, *others).tests.values()
    assert len(tests) == 2
    assert _gather(GROWS, *records[:1]).tests == {}  # one length is no line


def test_a_series_may_extend_across_other_columns() -> None:
    records = [record(f"strided:stride={n}", n, steady(n / 64), part=str(n)) for n in (64, 128)]
    assert _gather(GROWS, *records, rows={"variant": "strided:*"}).tests == {}
    across = GROWS | {"across": ["variant", "part"]}
    assert _only(_gather(across, *records, rows={"variant": "strided:*"})).plain == pytest.approx(1, abs=0.02)


def test_a_typical_value_has_the_error_of_its_spread() -> None:
    records = [record("linear", n, relative_error=e) for n, e in ((64, 0.1), (128, 0.2), (256, 0.4))]
    rule = {"value": "relative_error", "how": "typical", "at_most": 0.5}
    test = _only(_gather(rule, *records))
    assert (test.basis, test.plain) == (BASIS_SPREAD, pytest.approx(0.2))
    assert test.error_below == pytest.approx(math.log(2) / math.sqrt(3))


UPTRAINED: dict[str, Any] = {"variant": "mqa", "train.conversion": "mean"}
CONVERSIONS = {"value": "train.score", "against": {"train.conversion": "first"}, "at_most": 1.0}
CONVERSIONS |= {"interval": ["train.low", "train.high"]}


def _make_uptrained(score: float, conversion: str, *, seed: int = 0, share: float = 0.05, **known: Any) -> Record:
    extra: dict[str, Any] = {
        "conversion": conversion,
        "share": share,
        "score": score,
        "low": score - 0.01,
        "high": score + 0.01,
    }
    extra |= {"attempt": "uptrain", "original": known.pop("original", 1.9)}
    inputs = f"seed {seed}, uptrain, {conversion}, share {share:g}"
    columns = {"mode": "train", "task": "lm", "inputs": inputs, "seed": seed, "digest": f"{inputs}{share}"} | known
    made = record("mqa", 128, extra={f"train.{name}": x for name, x in extra.items()}, **columns)
    made.row.case_key = made.row.case_key.replace("/", f"/train-{inputs}/", 1)
    return made


def test_conversions_are_paired_by_seed_and_share() -> None:
    scores = {("mean", 0, 0.05): 2.0, ("first", 0, 0.05): 2.2, ("mean", 1, 0.05): 2.1, ("first", 1, 0.05): 2.1}
    scores |= {("mean", 0, 0.1): 1.9, ("first", 0, 0.1): 2.0, ("random", 0, 0.05): 2.9, ("first", 2, 0.05): 2.2}
    records = [_make_uptrained(x, name, seed=seed, share=share) for (name, seed, share), x in scores.items()]
    (tests,) = _gather(CONVERSIONS, *records, rows=UPTRAINED).tests.values()
    assert sorted(test.plain for test in tests) == pytest.approx([2.0 / 2.2, 1.9 / 2.0, 1.0])
    assert all(test.basis == BASIS_INTERVALS for test in tests)
    low, high = tests[0].interval(0.05) or (0.0, 0.0)
    assert high / low == pytest.approx(1.02, rel=0.01)  # sqrt 2 times 0.5% on each side
    other_run = _make_uptrained(2.2, "first", run_id="other")
    assert not _gather(CONVERSIONS, records[0], other_run, rows=UPTRAINED).tests


@pytest.mark.parametrize(("better", "worse"), [("mean", "first"), ("first", "random")])
def test_the_order_of_conversions_is_tested_for_originals_that_learned(better: str, worse: str) -> None:
    claim = next(e.claim for e in load_ledger() if e.claim.id == f"gqa-{better}-over-{worse}")
    seeds = [_make_uptrained(x, name, seed=n) for name, x in ((better, 2.0), (worse, 2.2)) for n in range(3)]
    tests = gather_tests(claim, evidence(*seeds))
    assert [test.plain for test in next(iter(tests.tests.values()))] == pytest.approx([2.0 / 2.2] * 3)
    poor = [_make_uptrained(x, name, original=2.3) for name, x in ((better, 2.0), (worse, 2.2))]
    tests = gather_tests(claim, evidence(*poor))
    assert (tests.tests, tests.out_of_regime) == ({}, 1)
