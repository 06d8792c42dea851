"""Whether a second run gives the same verdicts on published claims.

Usage: ``python suites/trials/claims_again.py FIRST... --again SECOND...``: runs of the same suites on the same machine,
an hour or more apart. All claims are judged by the first runs, then by the second ones. Prints how many the second
ones decide, for how many of these the first ones give the same verdict, and every claim on which they differ. A claim
of which one of the two says nothing that can be compared ("not measured", "out of regime") is counted apart.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from efficient_attn.report.claims.evidence import read_evidence
from efficient_attn.report.claims.ledger import load_ledger
from efficient_attn.report.claims.verdicts import ClaimVerdict, evaluate_claims
from efficient_attn.results.stats import estimate_share

DECIDED = ("reproduced", "contradicted")
MEASURED = (*DECIDED, "inconclusive")


def evaluate_runs(runs: Sequence[Path]) -> Mapping[str, ClaimVerdict]:
    """Every claim by its id, judged by these runs only."""
    return {verdict.entry.claim.id: verdict for verdict in evaluate_claims(load_ledger([]), read_evidence(runs)).claims}


def compare(first: Mapping[str, ClaimVerdict], second: Mapping[str, ClaimVerdict]) -> Counter[str]:
    """How often both agree, over the claims that both measured and the second decides."""
    counts: Counter[str] = Counter()
    for name, again in second.items():
        before = first[name].verdict
        if before not in MEASURED or again.verdict not in MEASURED:
            continue
        counts["measured by both"] += 1
        if again.verdict not in DECIDED:
            counts["second open"] += 1
        elif before == again.verdict:
            counts["same"] += 1
        else:
            counts["first open" if before not in DECIDED else "turned round"] += 1
    return counts


def format_verdict(verdict: ClaimVerdict) -> str:
    """``contradicted, 1.97 (1.87-2.06)``."""
    machine = verdict.decisive_machine
    if machine is None:
        return verdict.verdict
    ends = f" ({machine.low:.3g}-{machine.high:.3g})" if machine.low is not None and machine.high is not None else ""
    return f"{verdict.verdict}, {machine.decisive.plain:.3g}{ends}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, nargs="+")
    parser.add_argument("--again", type=Path, nargs="+", required=True)
    args = parser.parse_args(arguments)
    first, second = evaluate_runs(args.first), evaluate_runs(args.again)
    counts = compare(first, second)
    for name, again in second.items():
        before = first[name].verdict
        if before != again.verdict and {before, again.verdict} <= set(MEASURED):
            print(f"{name}: {format_verdict(first[name])}; again {format_verdict(again)}")
    decided = counts["same"] + counts["turned round"] + counts["first open"]
    print(f"{counts['measured by both']} claims measured by both, {decided} decided by the second run")
    if decided:
        share = estimate_share(counts["same"], decided)
        print(f"same verdict: {counts['same']} of {decided}, {share.value:.3f} ({share.low:.3f}-{share.high:.3f})")
    for outcome in ("turned round", "first open", "second open"):
        print(f"{outcome}: {counts[outcome]}")
    return 0 if decided and counts["same"] >= 0.95 * decided else 1


if __name__ == "__main__":
    raise SystemExit(main())
