"""Small ledgers of claims, as entries and as files, and evidence for them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from compare_runs import record, steady

from efficient_attn.report.claims.evidence import Evidence, EvidenceRow, make_evidence_row
from efficient_attn.report.claims.ledger import Claim, ClaimSource, LedgerEntry
from efficient_attn.results.differences import pair_with_baselines
from efficient_attn.results.rows import Record

STARTED = dt.datetime(2026, 2, 1, tzinfo=dt.UTC)


def claim_fields(rule: dict[str, Any], rows: dict[str, Any] | None = None, **known: Any) -> dict[str, Any]:
    """The fields of a claim as a file has them."""
    usual = {"id": "a-claim", "mechanism": "linear", "claim": "It is fast.", "says": "2x", "date": dt.date(2026, 1, 1)}
    usual |= {"rows": rows or {"variant": "linear"}, "rule": rule, "run": "efficient-attn run quickstart"}
    return usual | known


def entry(rule: dict[str, Any], rows: dict[str, Any] | None = None, **known: Any) -> LedgerEntry:
    claim = Claim.model_validate(claim_fields(rule, rows, **known))
    return LedgerEntry(
        "a",
        ClaimSource(title="A", cite="A 2026", kind="paper", checked="Table 2.", claim=(claim,)),
        claim,
        claim.group == "published",
    )


FAST = 'value = "speedup", at_least = 2'


def write(path: Path, rule: str = FAST, *, hash: str | None = None, more: str = "") -> Path:
    """A file with one claim, by default with its right hash."""
    from efficient_attn.report.claims.ledger import read_source

    text = f"""title = "A"
cite = "A 2026"
kind = "paper"
[[claim]]
id = "a-claim"
mechanism = "linear"
claim = "It is fast."
says = "2x"
rows = {{ variant = "linear" }}
rule = {{ {rule} }}
run = "efficient-attn run quickstart"
date = 2026-01-01
{more}
"""
    path.write_text(text)
    right = hash if hash is not None else read_source(path).claim[0].expected_hash
    path.write_text(f'{text}hash = "{right}"\n')
    return path


def evidence(*records: Record, started: dt.datetime | None = STARTED, protocol: int | None = None) -> Evidence:
    """The evidence in runs, one for each ``run_id``."""
    rows: list[EvidenceRow] = []
    for run in dict.fromkeys(r.row.run_id for r in records):
        own = [r for r in records if r.row.run_id == run]
        baselines = {id(e.record): e.baseline and e.baseline.record for e in pair_with_baselines(own).values()}
        session = {"started": started and started.isoformat(), "protocol": protocol}
        rows += [make_evidence_row(r, baselines.get(id(r)), session) for r in own]
    return Evidence(rows)


def disturb(*records: Record) -> list[Record]:
    """The records with most rounds disturbed."""
    for one in records:
        one.row.rounds, one.row.contaminated = 8, 5
    return [*records]


def pair(factor: float, *, spread: float = 0.01, length: int = 64, **known: Any) -> list[Record]:
    """A baseline and a variant with a speedup of `factor`."""
    linear = record("linear", length, steady(10 / factor, spread=spread), speedup=factor, **known)
    return [record("full", length, steady(10), **known), linear]
