"""Whether a second run says the same of the published claims.

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


def judge_runs(runs: Sequence[Path]) -> Mapping[str, ClaimVerdict]:
    """Every claim of the ledger by its id, as these runs alone judge it."""
    return {one.entry.claim.id: one for one in evaluate_claims(load_ledger([]), read_evidence(runs)).claims}


def compare(first: Mapping[str, ClaimVerdict], second: Mapping[str, ClaimVerdict]) -> Counter[str]:
    """How often what was said, over the claims that both measured and that the second decides."""
    counts: Counter[str] = Counter()
    for name, again in second.items():
        said = first[name].verdict
        if said not in MEASURED or again.verdict not in MEASURED:
            continue
        counts["measured by both"] += 1
        if again.verdict not in DECIDED:
            counts["second open"] += 1
        elif said == again.verdict:
            counts["same"] += 1
        else:
            counts["first open" if said not in DECIDED else "turned round"] += 1
    return counts


def tell(one: ClaimVerdict) -> str:
    """``contradicted, 1.97 (1.87-2.06)``."""
    shown = one.decisive_machine
    if shown is None:
        return one.verdict
    ends = f" ({shown.low:.3g}-{shown.high:.3g})" if shown.low is not None and shown.high is not None else ""
    return f"{one.verdict}, {shown.decisive.plain:.3g}{ends}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, nargs="+")
    parser.add_argument("--again", type=Path, nargs="+", required=True)
    args = parser.parse_args(given)
    first, second = judge_runs(args.first), judge_runs(args.again)
    counts = compare(first, second)
    for name, again in second.items():
        said = first[name].verdict
        if said != again.verdict and {said, again.verdict} <= set(MEASURED):
            print(f"{name}: {tell(first[name])}; again {tell(again)}")
    decided = counts["same"] + counts["turned round"] + counts["first open"]
    print(f"{counts['measured by both']} claims measured by both, {decided} decided by the second run")
    if decided:
        share = estimate_share(counts["same"], decided)
        print(f"same verdict: {counts['same']} of {decided}, {share.value:.3f} ({share.low:.3f}-{share.high:.3f})")
    for what in ("turned round", "first open", "second open"):
        print(f"{what}: {counts[what]}")
    return 0 if decided and counts["same"] >= 0.95 * decided else 1


if __name__ == "__main__":
    raise SystemExit(main())
