"""Verdicts: each one occurs, they share one error rate, and the order of rows does not matter."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from compare_runs import record
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import STARTED, disturb, entry, evidence, pair

from efficient_attn.report.claims.verdicts import RULE_IS_NEWER, ClaimVerdict, evaluate_claims
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


def test_more_claims_widen_all_intervals_but_not_by_counts() -> None:
    alone, records = entry(_fast(5.01)), pair(5.0, spread=0.3)
    counted = entry({"value": "parameters", "at_most": 1}, id="counts")

    def width(*others: Any) -> float:
        first = (
            evaluate_claims([alone, *others], evidence(*records, record("linear", 999, parameters=0)))
            .claims[0]
            .machines[0]
        )
        assert first.low
        assert first.high
        return first.high / first.low

    same = [entry(_fast(5.01), id=f"n{i}") for i in range(9)]
    assert width() == width(counted) < width(*same)


@settings(max_examples=12, deadline=None)
@given(st.randoms(), st.floats(1.5, 9))
def test_the_order_of_rows_changes_nothing(random, least: float) -> None:
    records = [r for n, f in ((64, 5.0), (128, 3.0), (256, 4.0)) for r in pair(f, length=n, spread=0.1)]
    mixed = random.sample(records, len(records))
    assert _judge(_fast(least), *records).machines == _judge(_fast(least), *mixed).machines
