"""Verdicts on claims as table rows and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from compare_runs import record
from ledgers import entry, evidence, pair

from efficient_attn.report.claims.claims_text import as_json, describe_open, format_measured, list_tables, summarise
from efficient_attn.report.claims.measurement import Measurement
from efficient_attn.report.claims.verdicts import LedgerVerdicts, MachineVerdict, evaluate_claims


def _evaluate(rule: dict[str, Any], *records: Any, **known: Any) -> LedgerVerdicts:
    return evaluate_claims([entry(rule, **known)], evidence(*records))


def _list_rows(verdicts: LedgerVerdicts) -> list[list[str]]:
    return [row for _, rows in list_tables(verdicts) for row in rows]


def test_rows_contain_the_claim_the_measurement_and_the_verdict() -> None:
    ((claim, source, claimed, measured, verdict),) = _list_rows(
        _evaluate({"value": "speedup", "at_least": 4}, *pair(5.0))
    )
    assert (claim, source, verdict) == ("a-claim: It is fast.", "A 2026", "reproduced")
    assert claimed == "2x; tested as speedup at least 4.00x"
    assert measured.startswith("5.0")
    assert "x (" in measured


def test_unmeasured_claims_name_the_command_that_measures_them() -> None:
    ((*_, measured, verdict),) = _list_rows(_evaluate({"value": "speedup", "at_least": 4}))
    assert (measured, verdict) == ("\u2013", "not measured; efficient-attn run quickstart")


def test_inconclusive_claims_name_the_interval_that_would_decide() -> None:
    ((*_, verdict),) = _list_rows(_evaluate({"value": "speedup", "at_least": 5.01}, *pair(5.0, spread=0.3)))
    assert verdict.startswith("inconclusive; half-width ")
    assert "%, needed to decide: " in verdict


def test_claims_that_only_the_correction_leaves_open_are_marked() -> None:
    unclear = [entry({"value": "speedup", "at_least": 5.01}, id=f"n{i}") for i in range(400)]
    found = evaluate_claims([entry({"value": "speedup", "at_least": 4.5}), *unclear], evidence(*pair(5.0, spread=0.1)))
    verdicts = [row[-1] for row in _list_rows(found)]
    assert verdicts[0] == "inconclusive; decided alone, but not after the correction for many tests (Holm)"
    assert verdicts[1].startswith("inconclusive; half-width ")
    assert [data["measured"]["decided_alone"] for data in as_json(found)[:2]] == [True, False]


def test_rules_are_stated_in_their_units() -> None:
    growth = {"value": "peak_memory_bytes", "over": "seq_len", "between": [0.8, 1.2]}
    rows = [record("linear", n, peak_memory_bytes=n * 1024) for n in (64, 128)]
    ((_, _, claimed, measured, _),) = _list_rows(_evaluate(growth, *rows))
    assert claimed == "2x; tested as exponent of peak_memory_bytes over seq_len from 0.80 to 1.20"
    assert measured == "1.00"
    ((_, _, claimed, measured, _),) = _list_rows(_evaluate({"value": "peak_memory_bytes", "at_most": 2048}, *rows))
    assert (claimed, measured) == ("2x; tested as peak_memory_bytes at most 2.00 KiB", "128 KiB, worst of 2 tests")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"over": "seq_len"}, "peak memory grows as N^1.00"),
        ({"over": "seq_len", "across": ["part"], "against": {"variant": "full"}}, None),
        ({"against": {"variant": "full"}}, "0.500x the peak memory of full, worst of 2 tests"),
        ({"against": {"variant": ["full", "gqa"]}}, "0.500x the peak memory of full or gqa, worst of 2 tests"),
        ({}, "peak memory 128 KiB, worst of 2 tests"),
    ],
)
def test_measured_values_name_their_quantity(rule: dict[str, Any], text: str | None) -> None:
    rows = [record("linear", n, peak_memory_bytes=n * 1024) for n in (64, 128)]
    rows += [record("full", n, peak_memory_bytes=n * 2048) for n in (64, 128)]
    ((claim_verdict,), _) = _evaluate({"value": "peak_memory_bytes", "at_most": 0.1} | rule, *rows).claims, None
    decisive = claim_verdict.decisive_machine
    assert decisive is not None
    expected = text or "peak memory over that of full grows as N^0.00"
    assert format_measured(claim_verdict.entry.claim.rule, decisive, with_quantity=True) == expected


def test_an_interval_that_decides_alone_is_attributed_to_the_correction() -> None:
    """Also where another test of the claim does not decide alone."""
    open_verdict = MachineVerdict("M", "inconclusive", 2, Measurement.of_count(2.0, ()), 1.9, 2.1, 0.05, 0.1)
    assert describe_open(open_verdict) == "decided alone, but not after the correction for many tests (Holm)"
    assert describe_open(replace(open_verdict, half_width=0.2)) == "half-width 20.0%, needed to decide: 10.0%"


def test_control_characters_are_removed() -> None:
    found = _evaluate({"value": "speedup", "at_least": 4}, claim="\x1b[31mred")
    assert "\x1b" not in "".join(_list_rows(found)[0])


def test_claims_show_the_place_of_their_figures() -> None:
    rule = {"value": "speedup", "at_least": 4}
    ((_, _, placed, *_),) = _list_rows(_evaluate(rule, where="Table 2, column 4K, row A"))
    ((_, _, remembered, *_),) = _list_rows(_evaluate(rule, from_memory=True))
    assert placed == "2x; Table 2, column 4K, row A; tested as speedup at least 4.00x"
    assert remembered == "2x; from memory; tested as speedup at least 4.00x"


def test_the_summary_counts_verdicts() -> None:
    first, second = summarise(_evaluate({"value": "speedup", "at_least": 4}, *pair(5.0)))
    assert first == "1 claims, 1 counted (at most three per mechanism and source): 1 reproduced."
    assert second == (
        "Intervals: 95% of each test alone. "
        "Verdicts: family-wise confidence 95% (Holm correction over 1 tests with an error)."
    )


def test_arithmetic_and_claims_from_memory_are_listed_and_counted_apart() -> None:
    rule = {"value": "speedup", "at_least": 4}
    entries = [
        entry(rule),
        entry(rule, id="sum", arithmetic=True),
        entry(rule, id="law", arithmetic=True, from_memory=True),
        entry(rule, id="recalled", from_memory=True),
    ]
    found = evaluate_claims(entries, evidence(*pair(5.0)))
    assert [
        (title.partition(":")[0], [row[0].partition(":")[0] for row in rows]) for title, rows in list_tables(found)
    ] == [
        ("Claims", ["a-claim"]),
        ("Arithmetic", ["sum", "law"]),
        ("From memory", ["recalled"]),
    ]
    assert summarise(found)[:3] == [
        "4 claims, 1 counted (at most three per mechanism and source): 1 reproduced.",
        "2 arithmetic, not counted: 2 reproduced.",
        "1 from memory, not counted: 1 reproduced.",
    ]
    assert [data["group"] for data in as_json(found)] == ["published", "arithmetic", "arithmetic", "from memory"]


def test_json_contains_the_claim_and_every_machine() -> None:
    found = _evaluate({"value": "speedup", "at_least": 4}, *pair(5.0), *pair(9.0, machine="M1", run_id="s"))
    (data,) = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert (data["id"], data["verdict"], data["counts"]) == ("a-claim", "reproduced", True)
    assert (data["source"]["cite"], data["source"]["checked"]) == ("A 2026", "Table 2.")
    assert [m["machine"] for m in data["machines"]] == ["M1", "Xeon-x2-15GiB"]
    assert data["measured"] == data["machines"][1]
    assert data["measured"]["low"] < data["measured"]["value"] < data["measured"]["high"]
    assert data["measured"]["basis"] == "raw rounds"
