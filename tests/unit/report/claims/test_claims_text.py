"""Judged claims as lines and as JSON."""

from __future__ import annotations

import json
from typing import Any

from compare_runs import record
from ledgers import entry, evidence, pair

from efficient_attn.report.claims.claims_text import as_json, as_rows, summarise
from efficient_attn.report.claims.verdicts import LedgerVerdicts, evaluate_claims


def _told(rule: dict[str, Any], *records: Any, **known: Any) -> LedgerVerdicts:
    return evaluate_claims([entry(rule, **known)], evidence(*records))


def test_a_line_says_claimed_measured_and_verdict() -> None:
    ((claim, source, claimed, measured, verdict),) = as_rows(_told({"value": "speedup", "at_least": 4}, *pair(5.0)))
    assert (claim, source, verdict) == ("a-claim: It is fast.", "A 2026", "reproduced")
    assert claimed == "2x (tested as speedup at least 4.00x)"
    assert measured.startswith("5.0")
    assert "x (" in measured


def test_what_was_not_measured_says_what_would() -> None:
    ((*_, measured, verdict),) = as_rows(_told({"value": "speedup", "at_least": 4}))
    assert (measured, verdict) == ("\u2013", "not measured; efficient-attn run quickstart")


def test_what_is_open_says_what_would_decide() -> None:
    ((*_, verdict),) = as_rows(_told({"value": "speedup", "at_least": 5.01}, *pair(5.0, spread=0.3)))
    assert verdict.startswith("inconclusive; half-width ")
    assert "%, needed to decide: " in verdict


def test_rules_are_stated_in_their_units() -> None:
    growth = {"value": "peak_memory_bytes", "over": "seq_len", "between": [0.8, 1.2]}
    rows = [record("linear", n, peak_memory_bytes=n * 1024) for n in (64, 128)]
    ((_, _, claimed, measured, _),) = as_rows(_told(growth, *rows))
    assert claimed == "2x (tested as exponent of peak_memory_bytes over seq_len from 0.80 to 1.20)"
    assert measured == "1.00"
    ((_, _, claimed, measured, _),) = as_rows(_told({"value": "peak_memory_bytes", "at_most": 2048}, *rows))
    assert (claimed, measured) == ("2x (tested as peak_memory_bytes at most 2.00 KiB)", "128 KiB, worst of 2 tests")


def test_texts_of_others_cannot_control_a_terminal() -> None:
    found = _told({"value": "speedup", "at_least": 4}, claim="\x1b[31mred")
    assert "\x1b" not in "".join(as_rows(found)[0])


def test_all_is_summed_up() -> None:
    first, second = summarise(_told({"value": "speedup", "at_least": 4}, *pair(5.0)))
    assert first == "1 claims (1 counted, at most three per mechanism and source): 1 reproduced."
    assert second == "Family-wise confidence of all verdicts: 95% (Holm correction over 1 tests with an error)."


def test_json_holds_the_claim_and_every_machine() -> None:
    found = _told({"value": "speedup", "at_least": 4}, *pair(5.0), *pair(9.0, machine="M1", run_id="s"))
    (told,) = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert (told["id"], told["verdict"], told["counts"]) == ("a-claim", "reproduced", True)
    assert (told["source"]["cite"], told["source"]["checked"]) == ("A 2026", "Table 2.")
    assert [m["machine"] for m in told["machines"]] == ["M1", "Xeon-x2-15GiB"]
    assert told["measured"] == told["machines"][1]
    assert told["measured"]["low"] < told["measured"]["value"] < told["measured"]["high"]
    assert told["measured"]["basis"] == "raw rounds"
