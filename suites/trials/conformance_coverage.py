"""The conformance tests: the planted bugs that they detect, by kind and mechanism, and their time.

    python suites/trials/conformance_coverage.py [SPEC ...]          # all names of the registry without a spec
    python suites/trials/conformance_coverage.py --seconds [SPEC ...] # only the time, in seconds of the processor
    python suites/trials/conformance_coverage.py --seconds --thorough [SPEC ...] # with all drawn calls

A bug counts as caught only where the check that caught it passes without the bug.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import torch

import efficient_attn as ea
from efficient_attn.testing import CHECKS, Subject, run_check

sys.path.append(str(Path(__file__).parents[2] / "tests" / "helpers"))

from planted_bugs import MUTANTS
from planted_bugs.kill_matrix import Kill, kill_matrix

KINDS = tuple(dict.fromkeys(mutant.kind for mutant in MUTANTS))


def time_checks(spec: str, *, thorough: bool = False) -> tuple[float, list[str]]:
    """Seconds of processor time for all checks, and the names of those that failed."""
    subject, start = Subject(spec, thorough=thorough), time.process_time()
    failed = [check.name for check in CHECKS if run_check(check, subject).status == "failed"]
    return time.process_time() - start, failed


def format_caught(kills: list[Kill], kind: str, broken: list[str]) -> str:
    """``caught/applicable`` of a kind; with a mark for each that was missed."""
    kind_kills = [kill for kill in kills if kill.kind == kind]
    caught = sum(kill.status == "caught" and kill.by not in broken for kill in kind_kills)
    applicable = sum(kill.status != "not_applicable" for kill in kind_kills)
    return f"{caught}/{applicable}" + ("!" if caught < applicable else "")


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    only_seconds, thorough = (option in arguments for option in ("--seconds", "--thorough"))
    specs = [spec for spec in arguments if not spec.startswith("--")] or ea.names()
    run_check(CHECKS[0], Subject("full"))  # late imports are not attributed to a mechanism
    print("| mechanism | seconds |" + "".join(f" {kind} |" for kind in KINDS if not only_seconds) + " failed checks |")
    print("|---|---|" + "---|" * (0 if only_seconds else len(KINDS)) + "---|")
    total: Counter[str] = Counter()
    for spec in specs:
        seconds, failed = time_checks(spec, thorough=thorough)
        cells = [spec, f"{seconds:.1f}"]
        if not only_seconds:
            kills = kill_matrix([spec])
            total.update(kill.status for kill in kills)
            cells += [format_caught(kills, kind, failed) for kind in KINDS]
            for kill in kills:
                if kill.status == "missed" or (kill.status == "caught" and kill.by in failed):
                    print(f"{spec}: {kill.mutant} {kill.status} {kill.by}", file=sys.stderr, flush=True)
        print("| " + " | ".join([*cells, ", ".join(failed) or "none"]) + " |", flush=True)
    if not only_seconds:
        print(f"\n{len(MUTANTS)} bugs: " + ", ".join(f"{count} {status}" for status, count in total.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
