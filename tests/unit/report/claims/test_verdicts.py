"""Verdicts: each one occurs, they share one error rate, and the order of rows does not matter."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
from compare_runs import record, steady
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import STARTED, disturb, entry, evidence, pair

from efficient_attn.report.claims.ledger import load_ledger
from efficient_attn.report.claims.verdicts import RULE_IS_NEWER, ClaimVerdict, MachineVerdict, evaluate_claims
from efficient_attn.results.rows import Record


def _judge(rule: dict[str, Any], *records: Record, started: dt.datetime | None = STARTED, **known: Any) -> ClaimVerdict:
    (found,) = evaluate_claims([entry(rule, **known)], evidence(*records, started=started)).claims
    return found


def _fast(least: float) -> dict[str, Any]:
    return {"value": "speedup", "at_least": least}


@pytest.mark.parametrize(
    ("least", "spread", "verdict"),
    [(4.0, 0.01, "reproduced"), (6.0, 0.01, "contradicted"), (5.01, 0.3, "inconclusive")],
)
def test_an_interval_decides(least: float, spread: float, verdict: str) -> None:
    found = _judge(_fast(least), *pair(5.0, spread=spread))
    assert (found.verdict, found.notes) == (verdict, ())
    assert found.decisive_machine is not None
    if verdict == "inconclusive":
        assert found.decisive_machine.half_width is not None
        assert found.decisive_machine.needed_half_width is not None
        assert found.decisive_machine.half_width > found.decisive_machine.needed_half_width
    else:
        assert (found.decisive_machine.half_width, found.decisive_machine.needed_half_width) == (None, None)


def test_without_rows_a_claim_is_not_measured_and_elsewhere_out_of_regime() -> None:
    assert _judge(_fast(2)).verdict == "not measured"
    assert _judge(_fast(2), record("performer", 64, speedup=3.0)).verdict == "not measured"
    assert _judge(_fast(2), *pair(5.0), regime={"seq_len": 128}).verdict == "out of regime"
    disturbed = _judge(_fast(2), *disturb(*pair(5.0)))
    assert (disturbed.verdict, disturbed.notes) == ("inconclusive", ("1 disturbed rows left out",))


def test_rules_apply_to_every_row_or_to_the_mean() -> None:
    records = [record("linear", n, relative_error=e) for n, e in ((64, 0.1), (128, 0.11), (256, 0.3))]
    every = _judge({"value": "relative_error", "at_most": 0.2}, *records)
    assert (every.verdict, every.decisive_machine and every.decisive_machine.decisive.plain) == (
        "contradicted",
        pytest.approx(0.3),
    )
    typical = {"value": "relative_error", "at_most": 2.0, "how": "typical"}
    assert _judge(typical, *records).verdict == "reproduced"


def test_one_machine_that_contradicts_is_enough_and_all_must_reproduce() -> None:
    slow = pair(2.0, machine="M1", run_id="s")
    found = _judge(_fast(4), *pair(5.0), *slow)
    assert (found.verdict, [m.verdict for m in found.machines]) == ("contradicted", ["contradicted", "reproduced"])
    assert found.notes == ("reproduced on Xeon-x2-15GiB; contradicted on M1",)
    assert found.decisive_machine
    assert found.decisive_machine.machine == "M1"
    wild = pair(4.1, machine="M1", run_id="s", spread=0.5)
    assert _judge(_fast(4), *pair(5.0), *wild).verdict == "inconclusive"
    assert _judge(_fast(1.5), *pair(5.0), *slow).verdict == "reproduced"


@pytest.mark.parametrize("started", [None, dt.datetime(2025, 12, 31, tzinfo=dt.UTC)])
def test_rows_older_than_the_rule_are_noted(started: dt.datetime | None) -> None:
    assert _judge(_fast(2), *pair(5.0), started=started).notes == (RULE_IS_NEWER,)


def test_more_claims_correct_verdicts_but_not_intervals_and_counts_correct_nothing() -> None:
    alone, records = entry(_fast(4.5)), pair(5.0, spread=0.1)
    counted = entry({"value": "parameters", "at_most": 1}, id="counts")
    unclear = [entry(_fast(5.01), id=f"n{i}") for i in range(400)]

    def judge(*others: Any) -> MachineVerdict:
        rows = evidence(*records, record("linear", 999, parameters=0))
        return evaluate_claims([alone, *others], rows).claims[0].machines[0]

    single, crowded = judge(), judge(*unclear)
    assert (single.verdict, crowded.verdict) == ("reproduced", "inconclusive")
    assert judge(counted) == single
    assert (crowded.low, crowded.high) == (single.low, single.high) == single.decisive.interval(0.05)
    assert single.low
    assert single.low > 4.5  # the claim's own interval lies within the rule
    assert (single.decided_alone, crowded.decided_alone) == (False, True)


def test_rows_of_older_protocols_test_no_claim() -> None:
    older = evidence(*pair(5.0), protocol=3)
    (found,) = evaluate_claims([entry(_fast(2))], older).claims
    assert (found.verdict, found.notes) == ("not measured", ("1 rows of older protocols left out",))
    assert len(older.rows) == 2  # other pages still show them
    for protocol in (None, 4, 5):
        (found,) = evaluate_claims([entry(_fast(2))], evidence(*pair(5.0), protocol=protocol)).claims
        assert (found.verdict, found.notes) == ("reproduced", ())
    elsewhere = entry(_fast(2), regime={"seq_len": 128})
    assert evaluate_claims([elsewhere], older).claims[0].notes == ()


# -- rules of the bundled ledger, on both sides of their thresholds ------------------------------------------------


def _judge_bundled(claim_id: str, *records: Record) -> str:
    (found,) = [bundled for bundled in load_ledger() if bundled.claim.id == claim_id]
    return evaluate_claims([found], evidence(*records)).claims[0].verdict


@pytest.mark.parametrize(
    ("claim_id", "bound", "variant", "known"),
    [
        ("child-strided-growth-v2", 1.7, "strided:stride=32", {"part": "strides of sqrt(N)", "causal": True}),
        ("linear-time-v2", 1.2, "linear", {"part": "growth"}),
        ("reformer-time-v2", 1.313, "reformer:n_hashes=4", {"part": "growth"}),
    ],
)
def test_an_upper_bound_of_time_is_contradicted_by_faster_growth_alone(
    claim_id: str, bound: float, variant: str, known: dict[str, Any]
) -> None:
    def judge(exponent: float) -> str:
        lengths = (1024, 2048, 4096, 8192, 16384)
        rows = [record(variant, n, steady((n / 1024) ** exponent), **known) for n in lengths]
        return _judge_bundled(claim_id, *rows)

    assert [judge(exponent) for exponent in (0.2, 1.0, bound - 0.1)] == ["reproduced"] * 3
    assert judge(bound) == "inconclusive"
    assert [judge(exponent) for exponent in (bound + 0.1, 2.5)] == ["contradicted"] * 2


@pytest.mark.parametrize("exponent", [-0.1, 0.5, 1.19, 1.21, 2.0])
def test_an_upper_bound_of_memory_is_exact(exponent: float) -> None:
    rows = [
        record("linformer:rank=256", n, peak_memory_bytes=round(1e9 * (n / 1024) ** exponent))
        for n in (1024, 2048, 4096)
    ]
    assert _judge_bundled("linformer-memory-v2", *rows) == ("reproduced" if exponent < 1.2 else "contradicted")


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.4, "reproduced"), (1.1, 1.3, "inconclusive"), (1.3, 1.5, "contradicted")]
)
def test_exponents_of_sweeps_are_upper_bounds_too(low: float, high: float, verdict: str) -> None:
    extra = {"along": "length", "time_exponent": (low + high) / 2, "time_low": low, "time_high": high}
    row = record("gru", 8192, task="complexity", extra=extra)
    assert _judge_bundled("vaswani-recurrent-length-v2", row) == verdict


@pytest.mark.parametrize(("factor", "verdict"), [(30.0, "reproduced"), (1.0, "reproduced"), (0.99, "contradicted")])
def test_six_steps_are_enough_unless_more_reduce_the_error(factor: float, verdict: str) -> None:
    six = record("nystromformer:n_landmarks=64", 256, task="fidelity", relative_error=0.2)
    more = record("nystromformer:n_iterations=24:n_landmarks=64", 256, task="fidelity", relative_error=0.2 * factor)
    assert _judge_bundled("nystrom-six-steps-v2", six, more) == verdict


SWAPPED: dict[str, Any] = {"task": "swap", "suite": "swap_long"}


@pytest.mark.parametrize(("ratio", "verdict"), [(1000.0, "reproduced"), (900.0, "contradicted"), (2.0, "contradicted")])
def test_a_window_without_sinks_is_judged_by_its_perplexity(ratio: float, verdict: str) -> None:
    def swapped(variant: str, loss: float, text: int) -> Record:
        row = record(variant, 8192, **SWAPPED, metric="nats a token", extra={"loss": loss})
        row.row.case_key = f"swap_long/all/text{text}/{variant}"
        return row

    rows = [
        swapped(variant, math.log(20) + more, text)
        for text, extra in enumerate((0.0, 0.001, 0.002))
        for variant, more in (
            ("attention_sinks:n_sink=4:window=508", 0.0),
            ("sliding_window:window=512", math.log(ratio) + extra),
        )
    ]
    assert max(row.row.extra["loss"] for row in rows) < 4 * math.log(20)  # no loss is four times as high
    assert _judge_bundled("sinks-window-breaks-v2", *rows) == verdict


def test_losses_of_other_metrics_have_no_perplexity() -> None:
    variants = ("attention_sinks:n_sink=4:window=508", "sliding_window:window=512")
    rows = [record(variant, 8192, **SWAPPED, extra={"loss": 0.5}) for variant in variants]
    assert _judge_bundled("sinks-window-breaks-v2", *rows) == "not measured"


@settings(max_examples=12, deadline=None)
@given(st.randoms(), st.floats(1.5, 9))
def test_the_order_of_rows_changes_nothing(random, least: float) -> None:
    records = [r for n, f in ((64, 5.0), (128, 3.0), (256, 4.0)) for r in pair(f, length=n, spread=0.1)]
    mixed = random.sample(records, len(records))
    assert _judge(_fast(least), *records).machines == _judge(_fast(least), *mixed).machines
