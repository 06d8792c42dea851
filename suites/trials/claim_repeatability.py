"""Does a second run give the same verdicts on published claims?

    python suites/trials/claim_repeatability.py FIRST... --again SECOND...

compares runs of the same suites on the same machine, an hour or more apart. All claims are evaluated on the first runs,
then on the second ones. Prints how many the second runs decide, for how many of these the first runs give the same
verdict, and every claim on which they differ. Claims that one of the two did not measure are not counted, nor is what
the ledger does not count: arithmetic, and figures from memory.
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
    """The verdicts on all claims that count by their ids, from these runs only."""
    verdicts = evaluate_claims(load_ledger([]), read_evidence(runs)).claims
    return {verdict.entry.claim.id: verdict for verdict in verdicts if verdict.entry.counts}


def compare(first: Mapping[str, ClaimVerdict], second: Mapping[str, ClaimVerdict]) -> Counter[str]:
    """How often both agree, over the claims that both measured and the second runs decide."""
    counts: Counter[str] = Counter()
    for name, again in second.items():
        before = first[name].verdict
        if before not in MEASURED or again.verdict not in MEASURED:
            continue
        counts["measured by both"] += 1
        if again.verdict not in DECIDED:
            counts["second inconclusive"] += 1
        elif before == again.verdict:
            counts["same"] += 1
        else:
            counts["first inconclusive" if before not in DECIDED else "opposite"] += 1
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
            print(f"{name}: {format_verdict(first[name])}; second run: {format_verdict(again)}")
    decided = counts["same"] + counts["opposite"] + counts["first inconclusive"]
    print(f"{counts['measured by both']} claims measured by both, {decided} decided by the second run")
    if decided:
        share = estimate_share(counts["same"], decided)
        print(f"same verdict: {counts['same']} of {decided}, {share.value:.3f} ({share.low:.3f}-{share.high:.3f})")
    for outcome in ("opposite", "first inconclusive", "second inconclusive"):
        print(f"{outcome}: {counts[outcome]}")
    return 0 if decided and counts["same"] >= 0.95 * decided else 1


if __name__ == "__main__":
    raise SystemExit(main())
