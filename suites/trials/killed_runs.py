"""Are acknowledged rows lost or duplicated when runs are killed at random moments and resumed?

    python suites/trials/killed_runs.py [KILLS]

A run of sixteen small groups is killed (SIGKILL) and resumed until it is complete, then a new run begins, until there
were KILLS kills (100 by default). Linux only.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from processes import list_descendants, wait_until_gone

import efficient_attn as ea

SUITE = """
title      = "Small groups"
measure    = ["forward"]
baseline   = "full"
rounds     = 4
max_rounds = 4
processes  = 2
axes       = { seq_len = [8, 16, 24, 32, 40, 48, 56, 64], threads = [1], causal = [false, true] }
dims       = { heads = 2, head_dim = 8 }
variant    = [{ name = "full" }, { name = "linear" }]
"""
CASES = 32
MAX_RUN_S = 12.0  # before a kill


@dataclass
class KillTally:
    kills: int = 0
    complete: int = 0
    in_the_middle: int = 0  # kills of runs that had written something and had not finished
    truncated: int = 0
    lost: int = 0
    altered: int = 0
    duplicated: int = 0
    orphans: int = 0


def read_whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.is_file() else b""
    return content[: content.rfind(b"\n") + 1]


def run_and_kill(folder: Path, seconds: float, tally: KillTally) -> bool:
    """Run for some seconds, kill the command, and compare its output with its files. True if it finished before."""
    rows = folder / "out" / "rows.jsonl"
    before = read_whole_lines(rows)
    with (folder / "stderr").open("w") as log:
        command = [sys.executable, "-m", "efficient_attn", "run", "groups.toml", "--out", "out", "--resume"]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            children = list_descendants(process.pid)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            tally.kills += 1
            tally.orphans += len(wait_until_gone(children))
    acknowledged = (folder / "stderr").read_text().count("\n[") + (folder / "stderr").read_text().startswith("[")
    content = rows.read_bytes() if rows.is_file() else b""
    after = read_whole_lines(rows)
    tally.truncated += content != after
    tally.altered += not after.startswith(before)
    tally.lost += max(0, acknowledged - (after.count(b"\n") - before.count(b"\n")))
    if rows.is_file():
        frame = ea.load(folder / "out")
        tally.duplicated += after.count(b"\n") - frame.case_key.nunique()
        tally.in_the_middle += process.returncode != 0 and 0 < len(frame) < CASES
    return process.returncode == 0


def main(kills: int) -> None:
    rng, tally = random.Random(0), KillTally()
    start = time.perf_counter()
    while tally.kills < kills:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "groups.toml").write_text(SUITE)
            while not run_and_kill(folder, rng.uniform(0, MAX_RUN_S), tally) and tally.kills < kills:
                pass
            while not run_and_kill(folder, 600.0, tally):
                pass
            rows = ea.load(folder / "out")
            complete = len(rows) == CASES and rows.case_key.is_unique and bool((rows.status == "ok").all())
            tally.complete += complete
            print(f"{tally.kills:4} kills, {time.perf_counter() - start:.0f} s: run complete: {complete}", flush=True)
    print(tally)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
