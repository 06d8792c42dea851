"""Verdicts on claims as table rows and as JSON."""

from __future__ import annotations

import json
from typing import Any

from compare_runs import record
from ledgers import entry, evidence, pair

from efficient_attn.report.claims.claims_text import as_json, as_rows, summarise
from efficient_attn.report.claims.verdicts import LedgerVerdicts, evaluate_claims


def _evaluate(rule: dict[str, Any], *records: Any, **known: Any) -> LedgerVerdicts:
    return evaluate_claims([entry(rule, **known)], evidence(*records))


def test_rows_contain_the_claim_the_measurement_and_the_verdict() -> None:
    ((claim, source, claimed, measured, verdict),) = as_rows(_evaluate({"value": "speedup", "at_least": 4}, *pair(5.0)))
    assert (claim, source, verdict) == ("a-claim: It is fast.", "A 2026", "reproduced")
    assert claimed == "2x (tested as speedup at least 4.00x)"
    assert measured.startswith("5.0")
    assert "x (" in measured


def test_unmeasured_claims_name_the_command_that_measures_them() -> None:
    ((*_, measured, verdict),) = as_rows(_evaluate({"value": "speedup", "at_least": 4}))
    assert (measured, verdict) == ("\u2013", "not measured; efficient-attn run quickstart")


def test_inconclusive_claims_name_the_interval_that_would_decide() -> None:
    ((*_, verdict),) = as_rows(_evaluate({"value": "speedup", "at_least": 5.01}, *pair(5.0, spread=0.3)))
    assert verdict.startswith("inconclusive; half-width ")
    assert "%, needed to decide: " in verdict


def test_rules_are_stated_in_their_units() -> None:
    growth = {"value": "peak_memory_bytes", "over": "seq_len", "between": [0.8, 1.2]}
    rows = [record("linear", n, peak_memory_bytes=n * 1024) for n in (64, 128)]
    ((_, _, claimed, measured, _),) = as_rows(_evaluate(growth, *rows))
    assert claimed == "2x (tested as exponent of peak_memory_bytes over seq_len from 0.80 to 1.20)"
    assert measured == "1.00"
    ((_, _, claimed, measured, _),) = as_rows(_evaluate({"value": "peak_memory_bytes", "at_most": 2048}, *rows))
    assert (claimed, measured) == ("2x (tested as peak_memory_bytes at most 2.00 KiB)", "128 KiB, worst of 2 tests")


def test_control_characters_are_removed() -> None:
    found = _evaluate({"value": "speedup", "at_least": 4}, claim="\x1b[31mred")
    assert "\x1b" not in "".join(as_rows(found)[0])


def test_the_summary_counts_verdicts() -> None:
    first, second = summarise(_evaluate({"value": "speedup", "at_least": 4}, *pair(5.0)))
    assert first == "1 claims (1 counted, at most three per mechanism and source): 1 reproduced."
    assert second == "Family-wise confidence of all verdicts: 95% (Holm correction over 1 tests with an error)."


def test_json_contains_the_claim_and_every_machine() -> None:
    found = _evaluate({"value": "speedup", "at_least": 4}, *pair(5.0), *pair(9.0, machine="M1", run_id="s"))
    (data,) = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert (data["id"], data["verdict"], data["counts"]) == ("a-claim", "reproduced", True)
    assert (data["source"]["cite"], data["source"]["checked"]) == ("A 2026", "Table 2.")
    assert [m["machine"] for m in data["machines"]] == ["M1", "Xeon-x2-15GiB"]
    assert data["measured"] == data["machines"][1]
    assert data["measured"]["low"] < data["measured"]["value"] < data["measured"]["high"]
    assert data["measured"]["basis"] == "raw rounds"
