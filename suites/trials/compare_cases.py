"""What does `compare` report for pairs of runs of which the difference is known?

    python suites/trials/compare_cases.py [--quick]

Runs a small suite unchanged, with one case slowed down, without a case, and next to a busy program, and compares each
with the first run. Also compares published runs of two processors, and a published run of an older schema with a new
one. Prints the table of docs/how-to/compare-runs.md. `--quick` measures two lengths and three rounds, to try it out.
"""

from __future__ import annotations

import gzip
import itertools
import json
import multiprocessing as mp
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare_error_rates import PLUGIN
from verdict_error_rates import spin

from efficient_attn.results.store import find_rows_path

RESULTS = Path(__file__).parents[2] / "results"
OLDER = RESULTS / "promises_xeon"
OLDER_PART = "overhead"
SUITE = f"""
title    = "Pairs of runs"
baseline = "full"
plugins  = ["{PLUGIN}"]

[axes]
threads = [1]

[dims]
heads    = 4
head_dim = 64

[[part]]
name    = "unchanged"
measure = ["forward"]
axes    = {{ seq_len = [256, 512, 1024, 2048] }}
variant = [{{ name = "full" }}, {{ name = "twin" }}]

[[part]]
name    = "slowed"
measure = ["forward"]
axes    = {{ seq_len = [1024] }}
variant = [{{ name = "full" }}, {{ name = "slower" }}]
"""
SLOWED = "/slower/"  # in the name of the case that is slowed down
COLUMNS = ("New run", "Verdicts", "The case `slower`", "No case slower by more than", "Exit status")


@dataclass(frozen=True)
class Pair:
    """Two runs to compare. new: what distinguishes the second run."""

    new: str
    folders: tuple[Path, Path]
    options: tuple[str, ...] = ()


def run_suite(folder: Path, name: str, *options: str, suite: str = "pairs.toml", slowdown: float = 0.0) -> Path:
    """A run in a folder, with `slower` slowed down by a share of its time. Its cases may fail, as `compare` reports."""
    command = [sys.executable, "-m", "efficient_attn", "run", suite, "--out", name, *options]
    environment = os.environ | {"TWINS_SLOWDOWN": str(slowdown)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{name}: {done.stderr}")
    return folder / name


def run_under_load(folder: Path, name: str, *options: str) -> Path:
    """A run while another program keeps one core busy."""
    hog = mp.get_context("spawn").Process(target=spin, daemon=True)
    hog.start()
    try:
        return run_suite(folder, name, *options)
    finally:
        hog.kill()


def measure_pairs(folder: Path, options: list[str]) -> Iterator[Pair]:
    """The pairs, each as soon as its runs have finished."""
    (folder / "pairs.toml").write_text(SUITE)
    base = run_suite(folder, "base", *options)
    yield Pair("the same again (A/A)", (base, run_suite(folder, "again", *options)))
    for percent in (5, 10, 20):
        slow = run_suite(folder, f"slower_{percent}", *options, slowdown=percent / 100)
        yield Pair(f"one case slowed by {percent}%", (base, slow))
    yield Pair("a part is missing", (base, run_suite(folder, "missing", *options, "--part", "unchanged")))
    yield Pair("a busy program on the other core", (base, run_under_load(folder, "load", *options)))
    processors = RESULTS / "promises_zen4", RESULTS / "promises_xeon"
    yield Pair("another processor", processors)
    yield Pair("another processor, `--across-machines`", processors, ("--across-machines",))
    newer = run_suite(folder, "present", "--part", OLDER_PART, suite="promises")
    schemas = f"base of schema {read_schema(OLDER)} (published), new run of schema {read_schema(newer)}"
    yield Pair(f"{schemas}, `--across-machines`", (OLDER, newer), ("--across-machines",))


def read_schema(run: Path) -> int:
    """The schema in which a run's first row is stored."""
    path = find_rows_path(run)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return int(json.loads(next(lines))["schema"])


def describe_pair(pair: Pair) -> list[str]:
    """The cells of a line: what `compare` reports with default options, and its exit status."""
    command = [sys.executable, "-m", "efficient_attn", "compare", *map(str, pair.folders), *pair.options]
    done = subprocess.run([*command, "--fail-on-regression", "--json"], capture_output=True, text=True, check=False)
    if done.returncode == 2:
        refusal = done.stderr.strip().removeprefix("efficient-attn: ")
        return [pair.new, f"refused: {refusal.partition(':')[0]}", "-", "-", "2"]
    found = json.loads(done.stdout)
    counts = {verdict: count for verdict, count in found["counts"].items() if count}
    counts |= {f"only in {side}": len(found[f"only_in_{side}"]) for side in ("base", "new") if found[f"only_in_{side}"]}
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    verdicts += f" ({len(found['blind'])} blind)" if found["blind"] else ""
    slowed = [case for case in found["cases"] if SLOWED in case["name"]]
    bound = found["slower_by_at_most"]
    return [
        pair.new,
        verdicts,
        ", ".join(map(format_case, slowed)) or "-",
        "all cases are blind" if bound is None else f"{bound:.1%}",
        str(done.returncode),
    ]


def format_case(case: Mapping[str, Any]) -> str:
    """The verdict of a case, with its ratio and interval if it has one."""
    if case["ratio"] is None or case["low"] is None:
        return case["kind"]
    return f"{case['kind']}: {case['ratio']:.3f}x ({case['low']:.3f}-{case['high']:.3f})"


def main(options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        lines = map(describe_pair, measure_pairs(Path(name), options))
        for cells in itertools.chain([COLUMNS, ["---"] * len(COLUMNS)], lines):
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main([word for word in sys.argv[1:] if word == "--quick"])
