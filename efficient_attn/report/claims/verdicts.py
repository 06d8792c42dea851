"""Verdicts on claims, with a family-wise error rate controlled by Holm's method over all tests of all claims.

Only verdicts are corrected; intervals are those of each test alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...results.stats import adjust_holm
from .evidence import ClaimTests, Evidence, gather_tests
from .ledger import ClaimGroup, LedgerEntry
from .measurement import BASIS_NO_ERROR, IntervalSide, Measurement

Verdict = Literal["reproduced", "contradicted", "inconclusive", "out of regime", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "contradicted", "inconclusive", "out of regime", "not measured")
RISK = 0.05  # family-wise error rate of all verdicts, and of each interval
# by the side of a machine's tests on which any interval lies, in order of precedence
VERDICT_BY_SIDE: Mapping[IntervalSide, Verdict] = {
    "outside": "contradicted",
    "open": "inconclusive",
    "inside": "reproduced",
}
RULE_IS_NEWER = "tested on rows older than the rule"


@dataclass(frozen=True)
class MachineVerdict:
    """The verdict from the rows of one machine. decisive: the test with the smallest margin to the bounds. low, high:
    its own 95% interval. half_width, needed_half_width: of an inconclusive test, the half-width of that interval and
    the one that would decide; relative on the log scale. decided_alone: inconclusive only because of the correction."""

    machine: str
    verdict: Verdict
    tests: int
    decisive: Measurement
    low: float | None
    high: float | None
    half_width: float | None = None
    needed_half_width: float | None = None
    decided_alone: bool = False


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with its verdict over all machines and those of single machines."""

    entry: LedgerEntry
    verdict: Verdict
    machines: tuple[MachineVerdict, ...]
    notes: tuple[str, ...]

    @property
    def decisive_machine(self) -> MachineVerdict | None:
        """Of the machines with the claim's verdict, the one nearest to failing."""
        deciding = [m for m in self.machines if m.verdict == self.verdict]
        bounds = self.entry.claim.rule.bounds
        return min(deciding, key=lambda m: m.decisive.margin(*bounds), default=None)


@dataclass(frozen=True)
class LedgerVerdicts:
    """Verdicts on all claims. tests: number of tests that share the risk."""

    claims: tuple[ClaimVerdict, ...]
    tests: int

    def list_group(self, group: ClaimGroup) -> list[ClaimVerdict]:
        """The claims of one group, in the order of the files."""
        return [claim_verdict for claim_verdict in self.claims if claim_verdict.entry.claim.group == group]


def evaluate_claims(entries: Sequence[LedgerEntry], evidence: Evidence) -> LedgerVerdicts:
    """Test every claim against its rows."""
    all_tests = [gather_tests(entry.claim, evidence) for entry in entries]
    tests = [
        (measurement, entry.claim.rule.bounds)
        for entry, claim_tests in zip(entries, all_tests, strict=True)
        for machine_tests in claim_tests.tests.values()
        for measurement in machine_tests
        if measurement.basis != BASIS_NO_ERROR  # the correction is only for tests with an error
    ]
    adjusted = adjust_holm([measurement.p_value(*bounds) for measurement, bounds in tests], RISK)
    risks = defaultdict(lambda: RISK / max(1, len(tests)), zip((id(test) for test, _ in tests), adjusted, strict=True))
    verdicts = (
        _evaluate_claim(entry, claim_tests, risks) for entry, claim_tests in zip(entries, all_tests, strict=True)
    )
    return LedgerVerdicts(tuple(verdicts), len(tests))


def _evaluate_machine(entry: LedgerEntry, machine: str, tests: Sequence[tuple[Measurement, float]]) -> MachineVerdict:
    bounds = entry.claim.rule.bounds
    sides: list[IntervalSide] = [measurement.side(*bounds, risk) for measurement, risk in tests]
    deciding_side, verdict = next(pair for pair in VERDICT_BY_SIDE.items() if pair[0] in sides)
    candidates = [test for test, side in zip(tests, sides, strict=True) if side == deciding_side]
    decisive, _ = min(candidates, key=lambda test: (test[0].margin(*bounds), test[0].cases))
    low, high = decisive.interval(RISK) or (None, None)
    if verdict != "inconclusive":
        return MachineVerdict(machine, verdict, len(tests), decisive, low, high)
    decided_alone = all(measurement.side(*bounds, RISK) != "open" for measurement, _ in tests)
    widths = decisive.half_widths(*bounds, RISK)
    return MachineVerdict(machine, verdict, len(tests), decisive, low, high, *widths, decided_alone)


def _evaluate_claim(entry: LedgerEntry, claim_tests: ClaimTests, risks: Mapping[int, float]) -> ClaimVerdict:
    """A claim is contradicted if any machine contradicts it, and reproduced if all reproduce it."""
    machines = tuple(
        _evaluate_machine(entry, machine, [(test, risks[id(test)]) for test in machine_tests])
        for machine, machine_tests in sorted(claim_tests.tests.items())
    )
    distinct = {m.verdict for m in machines}
    verdict: Verdict = "inconclusive"
    if not machines and not claim_tests.disturbed:
        verdict = "out of regime" if claim_tests.out_of_regime else "not measured"
    elif "contradicted" in distinct:
        verdict = "contradicted"
    elif distinct == {"reproduced"}:
        verdict = "reproduced"
    return ClaimVerdict(entry, verdict, machines, tuple(_list_notes(entry, claim_tests, machines)))


def _list_notes(entry: LedgerEntry, claim_tests: ClaimTests, machines: Sequence[MachineVerdict]) -> Iterable[str]:
    if len({m.verdict for m in machines}) > 1:
        names_by_verdict = {v: [m.machine for m in machines if m.verdict == v] for v in VERDICTS}
        yield "; ".join(f"{v} on {', '.join(names)}" for v, names in names_by_verdict.items() if names)
    if claim_tests.disturbed:
        yield f"{claim_tests.disturbed} disturbed rows left out"
    if claim_tests.older_protocol:
        yield f"{claim_tests.older_protocol} rows of older protocols left out"
    created_at = entry.claim.created_at
    if any(row.started is None or row.started < created_at for row in claim_tests.rows):
        yield RULE_IS_NEWER
