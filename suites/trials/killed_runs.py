"""Are acknowledged rows lost or duplicated when runs are killed at random moments and resumed?

    python suites/trials/killed_runs.py [KILLS [SIGNAL ...]]

A run of sixteen small groups and of the trainings of two mechanisms is ended by one of the signals (KILL by default;
others: TERM, HUP, INT) and resumed until it is complete, then a new run begins, until there were KILLS (100 by
default). Scores have to be those of a run that was not interrupted. Linux only.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from processes import list_descendants, wait_until_gone

import efficient_attn as ea

SUITE = """
title      = "Small groups"
baseline   = "full"
rounds     = 4
max_rounds = 4
processes  = 2
dims       = { heads = 2, head_dim = 8 }
variant    = [{ name = "full" }, { name = "linear" }]

pairs          = 2
vocab          = 32
examples       = 64
seeds          = 1
steps          = 120
checkpoint_s   = 0.1
learning_rates = [1e-3, 2e-3]

[[part]]
name    = "speed"
measure = ["forward"]
axes    = { seq_len = [8, 16, 24, 32, 40, 48, 56, 64], threads = [1], causal = [false, true] }
[[part]]
name    = "training"
measure = ["mqar"]
axes    = { seq_len = [16], threads = [1], causal = [true] }
"""
NO_RESULT = ("interrupted", "skipped")  # of cases whose next row may be another
MAX_RUN_S = 12.0  # before a kill


@dataclass
class KillTally:
    kills: int = 0
    complete: int = 0
    incomplete: int = 0
    in_the_middle: int = 0  # kills of runs that had written something and had not finished
    truncated: int = 0
    lost: int = 0
    altered: int = 0
    duplicated: int = 0
    orphans: int = 0
    other_exit_codes: int = 0


def read_whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def run_and_kill(folder: Path, seconds: float, ending: signal.Signals, tally: KillTally) -> bool:
    """Run for some seconds, end the command, and compare its output with its files. True if it finished before."""
    rows = folder / "out" / "rows.jsonl"
    before = read_whole_lines(rows)
    with (folder / "stderr").open("w") as log:
        command = [sys.executable, "-m", "efficient_attn", "run", "groups.toml", "--out", "out", "--resume"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            children = list_descendants(process.pid)
            os.kill(process.pid, ending)
            code = process.wait()
            tally.kills += 1
            finished = code == 0 and ending != signal.SIGKILL  # just before the signal
            tally.other_exit_codes += code not in (-ending, 128 + ending) and not finished
            tally.orphans += len(wait_until_gone(children))
    acknowledged = (folder / "stderr").read_text().count("\n[") + (folder / "stderr").read_text().startswith("[")
    content = rows.read_bytes() if rows.is_file() else b""
    after = read_whole_lines(rows)
    tally.truncated += content != after
    tally.altered += not after.startswith(before)
    tally.lost += max(0, acknowledged - (after.count(b"\n") - before.count(b"\n")))
    if rows.is_file():
        frame = ea.load(folder / "out")
        results = [row["case_key"] for row in map(json.loads, after.splitlines()) if row["status"] not in NO_RESULT]
        tally.duplicated += len(results) - len(set(results))
        tally.in_the_middle += process.returncode != 0 and len(frame) > 0
    return process.returncode == 0


def read_scores(folder: Path) -> dict[str, tuple[str, float | None]]:
    """Status and score of every case."""
    rows = ea.load(folder / "out")
    scores = [None if math.isnan(score) else score for score in rows.accuracy]
    return dict(zip(rows.case_key, zip(rows.status, scores, strict=True), strict=True))


def main(kills: int, signals: list[signal.Signals]) -> None:
    """Print a line for each complete run, then the sums."""
    rng, tally = random.Random(0), KillTally()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "groups.toml").write_text(SUITE)
        assert run_and_kill(Path(name), 600.0, signal.SIGKILL, KillTally()), "the run without interruption failed"
        expected = read_scores(Path(name))
    print(f"{len(expected)} cases: {Counter(status for status, _ in expected.values())}", flush=True)
    while tally.kills < kills:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "groups.toml").write_text(SUITE)
            seconds = rng.uniform(0, MAX_RUN_S)
            while not run_and_kill(folder, seconds, rng.choice(signals), tally) and tally.kills < kills:
                seconds = rng.uniform(0, MAX_RUN_S)
            run_and_kill(folder, 600.0, signal.SIGKILL, tally)
            complete = read_scores(folder) == expected
            tally.complete += complete
            tally.incomplete += not complete
            print(f"{tally.kills:4} kills, {time.perf_counter() - start:.0f} s: run complete: {complete}", flush=True)
    print(tally)


if __name__ == "__main__":
    names = sys.argv[2:] or ["KILL"]
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, [signal.Signals[f"SIG{name}"] for name in names])
