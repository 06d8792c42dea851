"""Format verdicts on claims as a table and as JSON."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ... import units
from ...results.sanitize import sanitize_line
from .ledger import ClaimGroup, ClaimRule
from .verdicts import RISK, RULE_IS_NEWER, VERDICTS, ClaimVerdict, LedgerVerdicts, MachineVerdict

COLUMNS = ("claim", "source", "claimed", "measured", "verdict")
OLDER_MARK = " *"  # after a verdict; explained in the last line


GROUP_TITLES: Mapping[ClaimGroup, str] = {
    "published": "Claims",
    "arithmetic": "Arithmetic: true by construction, not counted",
    "from memory": "From memory: figures that could not be looked up, not counted",
}


def list_tables(verdicts: LedgerVerdicts) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the title and the rows of each group's table: a row per claim, in the order of the files."""
    for group, title in GROUP_TITLES.items():
        if claim_verdicts := verdicts.list_group(group):
            yield title, [[sanitize_line(text) for text in _make_row(verdict)] for verdict in claim_verdicts]


def _make_row(claim_verdict: ClaimVerdict) -> tuple[str, ...]:
    claim, decisive = claim_verdict.entry.claim, claim_verdict.decisive_machine
    measured = format_measured(claim.rule, decisive) if decisive else units.EMPTY
    parts = [claim_verdict.verdict + OLDER_MARK * (RULE_IS_NEWER in claim_verdict.notes)]
    parts += [describe_open(decisive)] if decisive and decisive.verdict == "inconclusive" else []
    parts += [note for note in claim_verdict.notes if note != RULE_IS_NEWER]
    if claim_verdict.verdict in ("not measured", "out of regime"):
        parts.append(claim.run)
    origin = claim.where or ("from memory" if claim.from_memory else "")
    claimed = "; ".join(filter(None, (claim.says, origin, f"tested as {format_rule(claim.rule)}")))
    return f"{claim.id}: {claim.claim}", claim_verdict.entry.source.cite, claimed, measured, "; ".join(parts)


def format_rule(rule: ClaimRule) -> str:
    """``speedup at least 4.5x``."""
    low, high = (_format_value(rule, end) for end in rule.bounds)
    quantity = f"exponent of {rule.value} over {rule.over}" if rule.over else f"ratio of {rule.value}"
    quantity = quantity if rule.over or rule.against else rule.value
    if rule.between:
        return f"{quantity} from {low} to {high}"
    return f"{quantity} at least {low}" if math.isfinite(rule.at_least) else f"{quantity} at most {high}"


def format_measured(rule: ClaimRule, machine_verdict: MachineVerdict, *, with_quantity: bool = False) -> str:
    """The value and interval of the test nearest to failing, and the number of tests. with_quantity: as ``latency grows
    as N^0.03``, or ``1.67x the peak memory of full``."""
    text = _format_value(rule, machine_verdict.decisive.plain)
    low, high = machine_verdict.low, machine_verdict.high
    if low is not None and high is not None and low != high:
        text += f" ({_format_value(rule, low)}{units.INTERVAL_DASH}{_format_value(rule, high)})"
    text = _add_quantity(rule, text) if with_quantity else text
    return f"{text}, worst of {machine_verdict.tests} tests" if machine_verdict.tests > 1 else text


def _add_quantity(rule: ClaimRule, text: str) -> str:
    name = re.sub("_(bytes|ms)$", "", rule.value.rpartition(".")[2]).replace("_", " ")
    texts = {column: " or ".join(map(str, x)) if isinstance(x, list) else x for column, x in rule.against.items()}
    others = ", ".join(str(x) if column == "variant" else f"{column}={x}" for column, x in texts.items())
    if rule.over:
        name += f" over that of {others}" if others else ""
        return f"{name} grows as {'N' if rule.over == 'seq_len' else rule.over}^{text}"
    return f"{text} the {name} of {others}" if others else f"{name} {text}"


def _format_value(rule: ClaimRule, value: float) -> str:
    if rule.over:
        return units.exponent_interval(value)
    if rule.against or rule.value == "speedup":
        return units.ratio(value)
    if rule.value == "latency_ms":
        return units.duration(value)
    return units.size(value) if rule.value.endswith("_bytes") else units.number(value)


def describe_open(machine_verdict: MachineVerdict) -> str:
    """Why the rows of one machine do not decide a claim, in a few words."""
    half_width, needed = machine_verdict.half_width, machine_verdict.needed_half_width or 0.0
    if machine_verdict.decided_alone or (half_width is not None and half_width < needed):
        return "decided alone, but not after the correction for many tests (Holm)"
    format_value = units.percent if machine_verdict.decisive.log_scale else units.number
    half_width_text = "none" if half_width is None else format_value(half_width)
    return f"half-width {half_width_text}, needed to decide: {format_value(needed)}"


def summarise(verdicts: LedgerVerdicts) -> list[str]:
    """Summarize all verdicts in a few sentences."""
    counted = [claim_verdict for claim_verdict in verdicts.claims if claim_verdict.entry.counts]
    older = sum(RULE_IS_NEWER in claim_verdict.notes for claim_verdict in verdicts.claims)
    sentences = [
        f"{len(verdicts.claims)} claims, {len(counted)} counted (at most three per mechanism and source)"
        f"{_format_counts(counted)}."
    ]
    others = [(group, verdicts.list_group(group)) for group in GROUP_TITLES if group != "published"]
    sentences += [f"{len(listed)} {group}, not counted{_format_counts(listed)}." for group, listed in others if listed]
    sentences.append(
        f"Intervals: 95% of each test alone. Verdicts: family-wise confidence {1 - RISK:.0%} "
        f"(Holm correction over {verdicts.tests} tests with an error)."
    )
    return sentences + [f"* {RULE_IS_NEWER}: {older}."] * bool(older)


def _format_counts(claim_verdicts: Sequence[ClaimVerdict]) -> str:
    """``: 3 reproduced, 1 contradicted``."""
    counter = Counter(claim_verdict.verdict for claim_verdict in claim_verdicts)
    counts = ", ".join(f"{counter[verdict]} {verdict}" for verdict in VERDICTS if counter[verdict])
    return f": {counts}" if counts else ""


def as_json(verdicts: LedgerVerdicts) -> list[dict[str, Any]]:
    """The verdicts as data."""
    return [_claim_as_json(claim_verdict) for claim_verdict in verdicts.claims]


def _claim_as_json(claim_verdict: ClaimVerdict) -> dict[str, Any]:
    entry, decisive = claim_verdict.entry, claim_verdict.decisive_machine
    return entry.claim.model_dump(mode="json", exclude_defaults=True) | {
        "source": entry.source.model_dump(mode="json", exclude={"claim"}) | {"file": entry.file},
        "group": entry.claim.group,
        "counts": entry.counts,
        "verdict": claim_verdict.verdict,
        "measured": _machine_as_json(decisive) if decisive else None,
        "machines": [_machine_as_json(machine) for machine in claim_verdict.machines],
        "notes": list(claim_verdict.notes),
    }


def _machine_as_json(machine_verdict: MachineVerdict) -> dict[str, Any]:
    names = ("machine", "verdict", "low", "high", "tests", "half_width", "decided_alone")
    decisive = machine_verdict.decisive
    return {name: getattr(machine_verdict, name) for name in names} | {
        "value": decisive.plain,
        "basis": decisive.basis,
        "cases": list(decisive.cases),
        "would_decide": machine_verdict.needed_half_width,
    }
