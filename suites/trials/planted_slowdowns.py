"""Which planted slowdowns does the composite action find, and how often does it report one where there is none?

    python suites/trials/planted_slowdowns.py [--runs 12] [--suite ci] [--seed 0] [--quick]

Each run commits slowdowns of 5, 10, 20 and 50% of drawn cases to a clone of this repository, seven of the twelve cases
of the suite `ci`, and compares the commit with its parent by the action's own script. In 12 runs, each size is planted
21 times, and 60 cases stay as they are. The clone has the committed state of this checkout. `--quick` measures three
rounds, to try it out. Prints every run, then the table of docs/how-to/benchmark-in-ci.md.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from efficient_attn.results.stats import estimate_share

CHECKOUT = Path(__file__).parents[2]
SCRIPT = Path(".github/actions/compare/compare_revisions.py")
PATCHED = Path("efficient_attn/bench/measuring/samples.py")
SIZES = (5, 10, 20, 50)  # percent
PLANTED_PER_RUN = 7
PATCH = """

PLANTED = {planted!r}
_make_timed = make_timed


def make_timed(workload, **options):
    from time import perf_counter

    subject = _make_timed(workload, **options)
    case = workload.case
    share = PLANTED.get(f"{{case.group.part}}/{{case.variant}}", 0) / 100

    def run(count):
        start = perf_counter()
        subject.run(count)
        end = perf_counter()
        while perf_counter() < end + share * (end - start):
            pass

    return replace(subject, run=run)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--suite", default="ci")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    cases, rng = list_cases(args.suite), random.Random(args.seed)
    counts: dict[int, Counter[str]] = {size: Counter() for size in (0, *SIZES)}
    alarms = 0
    for number in range(args.runs):
        planted = draw_slowdowns(cases, number, rng)
        started = time.monotonic()
        found = compare_planted(planted, args.suite, ["--quick"] if args.quick else [])
        verdicts = {name_case(change["name"]): describe(change) for change in found["cases"]}
        for name, (verdict, _) in verdicts.items():
            counts[planted.get(name, 0)][verdict] += 1
        alarms += any(verdict in ("slower", "faster") for name, (verdict, _) in verdicts.items() if name not in planted)
        print(f"run {number + 1}, {time.monotonic() - started:.0f} s:")
        for name, (verdict, text) in verdicts.items():
            print(f"  {planted.get(name, 0):2}%  {name}: {verdict} {text}", flush=True)
    print_table(counts)
    print(f"runs in which an unchanged case was reported as slower or faster: {alarms} of {args.runs}")


def list_cases(suite: str) -> list[str]:
    """The cases of a suite, as `name_case` names them."""
    command = [sys.executable, "-m", "efficient_attn", "plan", suite, "--json"]
    done = subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True)
    return list(dict.fromkeys(name_case(case["case_key"]) for case in json.loads(done.stdout)))


def name_case(key: str) -> str:
    """``part/variant`` of a case's key."""
    _, part, _, variant, *_ = key.split("/")
    return f"{part}/{variant}"


def draw_slowdowns(cases: list[str], number: int, rng: random.Random) -> dict[str, int]:
    """Percent by case. Over the runs, all sizes are equally frequent."""
    chosen = rng.sample(cases, min(PLANTED_PER_RUN, len(cases)))
    return {name: SIZES[(number * PLANTED_PER_RUN + i) % len(SIZES)] for i, name in enumerate(chosen)}


def compare_planted(planted: dict[str, int], suite: str, options: list[str]) -> dict[str, Any]:
    """What `compare` reports in JSON for a commit with the slowdowns and its parent, by the action's script."""
    with tempfile.TemporaryDirectory() as name:
        clone, out = Path(name) / "clone", Path(name) / "out"
        subprocess.run(["git", "clone", "-q", "--shared", str(CHECKOUT), str(clone)], check=True)
        with (clone / PATCHED).open("a") as source:
            source.write(PATCH.format(planted=planted))
        author = ["-c", "user.name=trial", "-c", "user.email=trial@localhost"]
        subprocess.run(["git", *author, "commit", "-qam", "Plant slowdowns"], cwd=clone, check=True)
        command = [sys.executable, str(clone / SCRIPT), "--suite", suite, "--out", str(out)]
        command += [f"--run-options={' '.join(options)}", "--compare-options=--format json --out comparison.json"]
        done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stdout + done.stderr)
        return json.loads((clone / "comparison.json").read_text())


def describe(change: dict[str, Any]) -> tuple[str, str]:
    """The verdict, ``blind`` included, and the ratio with its interval."""
    verdict = "blind" if change["blind"] else change["kind"]
    if change["low"] is None:
        return verdict, change["reason"] or ""
    return verdict, f"{change['ratio']:.3f} ({change['low']:.3f}-{change['high']:.3f})"


def print_table(counts: dict[int, Counter[str]]) -> None:
    kinds = ("faster", "same", "inconclusive", "blind", "broken")
    print(f"| Slowdown | Cases | Reported as slower | {' | '.join(kinds)} |")
    print("|---|---|---|" + "---|" * len(kinds))
    for size, verdicts in counts.items():
        if total := verdicts.total():
            share = estimate_share(verdicts["slower"], total)
            slower = f"{verdicts['slower']} ({share.value:.0%}; {share.low:.0%}-{share.high:.0%})"
            rest = " | ".join(str(verdicts[kind]) for kind in kinds)
            print(f"| {f'{size}%' if size else 'none'} | {total} | {slower} | {rest} |")


if __name__ == "__main__":
    main()
