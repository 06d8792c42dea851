"""Judged claims as a table for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from ... import units
from ...results.cleaning import clean
from .judging import OLDER, RISK, Judged, Judgement, OnMachine
from .ledger import Rule

COLUMNS = ("claim", "source", "claimed", "measured", "verdict")
OLD = " *"  # beside a verdict, for what the last line says


def as_rows(judgement: Judgement) -> list[list[str]]:
    """A line a claim, in the order of the files."""
    return [[clean(text) for text in _row(judged)] for judged in judgement.claims]


def _row(judged: Judged) -> tuple[str, ...]:
    claim, shown = judged.entry.claim, judged.shown
    measured = tell_measured(claim.rule, shown) if shown else units.NONE
    notes = [note for note in judged.notes if note != OLDER]
    told = [judged.verdict + OLD * (OLDER in judged.notes), *(_tell_needed(shown) if shown else ()), *notes]
    if judged.verdict in ("not measured", "out of regime"):
        told.append(claim.run)
    claimed = f"{claim.says} (held to {tell_rule(claim.rule)})"
    return f"{claim.id}: {claim.claim}", judged.entry.source.cite, claimed, measured, "; ".join(told)


def tell_rule(rule: Rule) -> str:
    """``speedup at least 4.5x``."""
    low, high = (_write(rule, end) for end in rule.edges)
    what = f"exponent of {rule.value} over {rule.over}" if rule.over else f"ratio of {rule.value}"
    what = what if rule.over or rule.against else rule.value
    if rule.between:
        return f"{what} from {low} to {high}"
    return f"{what} at least {low}" if rule.at_least is not None else f"{what} at most {high}"


def tell_measured(rule: Rule, found: OnMachine) -> str:
    """The value with its interval, and of how many tests it is the one nearest to failing."""
    text = _write(rule, found.shown.plain)
    if found.low is not None and found.high is not None and found.low != found.high:
        text += f" ({_write(rule, found.low)}{units.TO}{_write(rule, found.high)})"
    return f"{text}, worst of {found.tests}" if found.tests > 1 else text


def _write(rule: Rule, value: float) -> str:
    if rule.over:
        return units.power(value)
    if rule.against or rule.value == "speedup":
        return units.ratio(value)
    if rule.value == "latency_ms":
        return units.duration(value)
    return units.size(value) if rule.value.endswith("_bytes") else units.number(value)


def _tell_needed(found: OnMachine) -> tuple[str, ...]:
    if found.needed is None:
        return ()
    unit = units.percent if found.shown.logs else units.number
    own = unit(found.half_width) if found.half_width is not None else "none"
    return (f"half-width {own}, would decide at {unit(found.needed)}",)


def conclude(judgement: Judgement) -> list[str]:
    """What came of all, in a few sentences."""
    entries = [judged.entry for judged in judgement.claims]
    counting = sum(entry.counts for entry in entries)
    told = ", ".join(f"{count} {verdict}" for verdict, count in judgement.counts.items() if count)
    older = sum(OLDER in judged.notes for judged in judgement.claims)
    return [
        f"{len(entries)} claims ({counting} count, at most three a mechanism and source): {told}.",
        f"All verdicts hold together at {1 - RISK:.0%} (Holm, {judgement.tests} tests with an error).",
        *([f"* {OLDER}: {older}."] if older else []),
    ]


def as_json(judgement: Judgement) -> list[dict[str, Any]]:
    return [_object(judged) for judged in judgement.claims]


def _object(judged: Judged) -> dict[str, Any]:
    entry, shown = judged.entry, judged.shown
    source = entry.source.model_dump(mode="json", exclude={"claim"}) | {"file": entry.file}
    said = entry.claim.model_dump(mode="json", exclude_defaults=True)
    measured = _measured(shown) if shown else None
    return said | {
        "source": source,
        "counts": entry.counts,
        "verdict": judged.verdict,
        "measured": measured,
        "machines": [_measured(machine) for machine in judged.machines],
        "notes": list(judged.notes),
    }


def _measured(found: OnMachine) -> dict[str, Any]:
    shown = found.shown
    return {
        "machine": found.machine,
        "verdict": found.verdict,
        "value": shown.plain,
        "low": found.low,
        "high": found.high,
        "basis": shown.basis,
        "tests": found.tests,
        "cases": list(shown.cases),
        "half_width": found.half_width,
        "would_decide": found.needed,
    }
