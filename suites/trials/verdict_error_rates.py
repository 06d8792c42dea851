"""What are the error rates of verdicts within a run, and the coverage of intervals?

    python suites/trials/verdict_error_rates.py [REPEATS] [--hog]

Each repeat measures groups of `full`, an identical copy and a copy that is 5% slower, at every length, with a run's
default numbers of processes and rounds. `--hog` keeps one processor busy with another program.
"""

from __future__ import annotations

import multiprocessing as mp
import sys
import time
from collections import Counter
from pathlib import Path

from efficient_attn.bench.case import group_cases
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.group import measure_group
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.planning.suite import parse_suite
from efficient_attn.registry import load_plugin
from efficient_attn.results.exchange import list_round_values
from efficient_attn.results.rows import Record
from efficient_attn.results.stats import classify_ratio, estimate_paired_ratio
from efficient_attn.tasks import TABLE

LENGTHS = (128, 256, 512, 1024, 2048)
VERDICT_CONFIDENCE = 0.99  # of a verdict: at 95% one in twenty would be an error
TRUTH = {"twin": 1.0, "slower": 1 / 1.05}  # speedup over full
SUITE = f"""
title    = "Verdicts"
measure  = ["forward"]
baseline = "full"
axes     = {{ seq_len = {list(LENGTHS)}, threads = [1] }}
dims     = {{ heads = 4, head_dim = 64 }}
variant  = [{{ name = "full" }}, {{ name = "twin" }}, {{ name = "slower" }}]
"""


def count_verdict(base: Record, other: Record, counts: Counter[tuple[str, str]]) -> None:
    """Count the verdict of one comparison."""
    top, bottom, groups = list_round_values(base), list_round_values(other), other.samples["process"]
    strict = estimate_paired_ratio(top, bottom, groups, confidence=VERDICT_CONFIDENCE)
    interval = estimate_paired_ratio(top, bottom, groups)
    assert None not in (*strict, *interval)
    name = other.row.variant
    counts[name, "groups"] += 1
    counts[name, classify_ratio(strict.low, strict.high)] += 1
    counts[name, "covered"] += interval.low <= TRUTH[name] <= interval.high
    counts[name, "half width, 0.01%"] += round(interval.half_width * 10_000)
    counts[name, "contaminated"] += (other.row.contaminated or 0) > 0


def spin() -> None:
    while True:
        pass


def main(repeats: int, *, hog: bool) -> None:
    load_plugin(str(Path(__file__).parents[1] / "plugins" / "twins.py"))
    suite = parse_suite(SUITE, "verdicts", TABLE)
    hog_process = mp.get_context("spawn").Process(target=spin, daemon=True)
    if hog:
        hog_process.start()
    counts: Counter[tuple[str, str]] = Counter()
    start, rounds = time.perf_counter(), 0
    for repeat in range(repeats):
        for group, cases in group_cases(make_plan(suite, Overrides(seed=repeat))):
            base, *compared = measure_group(group, cases, Conditions())
            rounds += base.row.rounds or 0
            for other in compared:
                count_verdict(base, other, counts)
    if hog:
        hog_process.kill()
    report(counts, rounds, time.perf_counter() - start)


def report(counts: Counter[tuple[str, str]], rounds: int, seconds: float) -> None:
    for name, truth in TRUTH.items():
        groups = counts[name, "groups"]
        shares = ", ".join(f"{counts[name, v] / groups:.1%} {v}" for v in ("faster", "slower", "same", "inconclusive"))
        print(f"{name} (true speedup {truth:.3f}), {groups} groups: {shares}")
        print(f"  95% intervals that contain the true value: {counts[name, 'covered'] / groups:.1%}")
        print(f"  mean half width: {counts[name, 'half width, 0.01%'] / groups / 100:.2f}%")
        print(f"  groups with disturbed rounds: {counts[name, 'contaminated'] / groups:.1%}")
    print(f"{rounds} rounds, {seconds:.0f} s")


if __name__ == "__main__":
    numbers = [int(a) for a in sys.argv[1:] if a.isdecimal()]
    main(numbers[0] if numbers else 20, hog="--hog" in sys.argv)
