"""Verdicts on claims. All of them hold together but for one risk, by Holm's steps over every test of every claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...results.stats import step_down
from .evidence import Evidence, Found, gather_tests
from .ledger import Entry
from .measured import COUNTED, Measured, Side

Verdict = Literal["reproduced", "contradicted", "inconclusive", "out of regime", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "contradicted", "inconclusive", "out of regime", "not measured")
RISK = 0.05  # that any of all verdicts is wrong by chance
OLDER = "tested on rows older than the rule"


@dataclass(frozen=True)
class OnMachine:
    """What the rows of one machine say. shown: the test nearest to failing, or that failed worst. low, high: its
    interval, at the risk that it was judged by. half_width: its own; needed: the one that would decide, where it does
    not. Both are relative on the log scale."""

    machine: str
    verdict: Verdict
    tests: int
    shown: Measured
    low: float | None
    high: float | None
    half_width: float | None = None
    needed: float | None = None


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict over all machines, and the machine that decides what is shown."""

    entry: Entry
    verdict: Verdict
    machines: tuple[OnMachine, ...]
    notes: tuple[str, ...]

    @property
    def shown(self) -> OnMachine | None:
        """The machine that decided: of those with the claim's own verdict the one nearest to failing."""
        deciding = [m for m in self.machines if m.verdict == self.verdict]
        edges = self.entry.claim.rule.edges
        return min(deciding, key=lambda m: m.shown.margin(*edges), default=None)


@dataclass(frozen=True)
class Judgement:
    """All claims judged together. tests: how many share the risk."""

    claims: tuple[Judged, ...]
    tests: int

    @property
    def counts(self) -> dict[Verdict, int]:
        found = Counter(judged.verdict for judged in self.claims)
        return {verdict: found[verdict] for verdict in VERDICTS}


def judge(entries: Sequence[Entry], evidence: Evidence) -> Judgement:
    """Hold every claim to the rows that test it."""
    found = [gather_tests(entry.claim, evidence) for entry in entries]
    tests = [
        (at, machine, one)
        for at, each in enumerate(found)
        for machine, several in each.tests.items()
        for one in several
        if one.basis != COUNTED  # what has no error takes no share of the risk
    ]
    steps = step_down([one.p_value(*entries[at].claim.rule.edges) for at, _, one in tests], RISK)
    risks = {(at, machine, id(one)): risk for (at, machine, one), risk in zip(tests, steps, strict=True)}
    least = RISK / max(1, len(tests))
    judged = []
    for at, (entry, each) in enumerate(zip(entries, found, strict=True)):
        machines = tuple(
            _judge_machine(entry, machine, [(one, risks.get((at, machine, id(one)), least)) for one in several])
            for machine, several in sorted(each.tests.items())
        )
        judged.append(_conclude(entry, each, machines))
    return Judgement(tuple(judged), len(tests))


def _judge_machine(entry: Entry, machine: str, tests: Sequence[tuple[Measured, float]]) -> OnMachine:
    edges = entry.claim.rule.edges
    sides: list[Side] = [one.side(*edges, risk) for one, risk in tests]
    verdict: Verdict = "contradicted" if "outside" in sides else "inconclusive" if "open" in sides else "reproduced"
    deciding: Side = "outside" if "outside" in sides else "open" if "open" in sides else "inside"
    chosen = [test for test, side in zip(tests, sides, strict=True) if side == deciding]
    shown, risk = min(chosen, key=lambda test: (test[0].margin(*edges), test[0].cases))
    low, high = shown.interval(risk) or (None, None)
    widths = shown.half_widths(*edges, risk) if verdict == "inconclusive" else (None, None)
    return OnMachine(machine, verdict, len(tests), shown, low, high, *widths)


def _conclude(entry: Entry, found: Found, machines: tuple[OnMachine, ...]) -> Judged:
    if machines:
        verdict = _join([m.verdict for m in machines])
    elif found.disturbed:
        verdict = "inconclusive"
    else:
        verdict = "out of regime" if found.elsewhere else "not measured"
    return Judged(entry, verdict, machines, tuple(_list_notes(entry, found, machines, verdict)))


def _join(verdicts: Iterable[Verdict]) -> Verdict:
    """Over machines: one that contradicts is enough, and all must reproduce."""
    said = set(verdicts)
    if "contradicted" in said:
        return "contradicted"
    return "reproduced" if said == {"reproduced"} else "inconclusive"


def _list_notes(entry: Entry, found: Found, machines: Sequence[OnMachine], verdict: Verdict) -> Iterable[str]:
    if len({m.verdict for m in machines}) > 1:
        on = {v: [m.machine for m in machines if m.verdict == v] for v in VERDICTS}
        yield "; ".join(f"{v} on {', '.join(names)}" for v, names in on.items() if names)
    if found.disturbed:
        yield f"{found.disturbed} disturbed rows left out"
    made = entry.claim.made
    rows = [s for several in found.rows.values() for s in several]
    if any(s.started is None or s.started < made for s in rows):
        yield OLDER
