"""A small training sweep killed at random moments and resumed: are seeds lost or duplicated, or curves changed?

    python suites/trials/training_kills.py [--kills N] [--seed S]

The sweep runs once in peace. Then the same command is killed (SIGKILL, as the system does it) and resumed until it is
complete, and begun anew, until there were so many kills. Curves, accuracies and all that was counted are compared bit
by bit with those of the run in peace; seconds are left out. Linux only.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import list_descendants, wait_until_gone

from efficient_attn.results.checkpoints import CHECKPOINT_FOLDER
from efficient_attn.results.rows import Record
from efficient_attn.results.shards import scan_lines

SUITE = """
title       = "Small sweep"
measure     = ["mqar", "copying"]
baseline    = "full"
axes        = { seq_len = [16], threads = [1] }
variant     = [{ name = "full" }, { name = "performer" }]
pairs       = 4
steps       = 40
batch       = 16
examples    = 16
checkpoint_s = 0.01
"""
LONGEST_S = 12.0  # before a kill
SECONDS = ("train.train_s", "train.step_ms")


@dataclass
class TrainingKillTally:
    kills: int = 0
    complete: int = 0
    in_training: int = 0  # kills that left a checkpoint
    torn: int = 0  # kills in the middle of writing one
    doubled: int = 0
    lost: int = 0
    altered: int = 0
    leftover_checkpoints: int = 0  # checkpoints in a run that is complete
    orphans: int = 0

    @property
    def sound(self) -> bool:
        return not (self.doubled or self.lost or self.altered or self.leftover_checkpoints or self.orphans)


def run_and_kill(folder: Path, seconds: float | None, tally: TrainingKillTally) -> bool:
    """Run for some seconds, then kill. True if it finished before."""
    command = [sys.executable, "-m", "efficient_attn", "run", "sweep.toml", "--out", "out", "--resume"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = os.environ | {"EFFICIENT_ATTN_CALIBRATION": "off"}  # forms of kernels are then the same in every run
    process = subprocess.Popen(command, cwd=folder, env=environment, **quiet)
    try:
        if process.wait(seconds):
            raise SystemExit(f"the run failed: exit code {process.returncode}")
        return True
    except subprocess.TimeoutExpired:
        children = list_descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    tally.kills += 1
    tally.orphans += len(wait_until_gone(children))
    names = [path.name for path in (folder / "out" / CHECKPOINT_FOLDER).glob("*")]
    tally.in_training += bool(names)
    tally.torn += any(name.endswith(".tmp") for name in names)
    return False


def read_results(folder: Path) -> list[tuple[str, Any]]:
    """Every row that was written, including superseded ones: its case and results."""
    results = []
    for _, record in scan_lines(folder / "out" / "rows.jsonl"):
        if isinstance(record, Record):
            row = record.row
            extra = {name: value for name, value in row.extra.items() if name not in SECONDS}
            outcome = row.status, row.reason, row.stop_reason, row.accuracy, row.loss, row.steps, row.parameters
            results.append((row.case_key, (*outcome, extra, record.samples)))
    return results


def compare(folder: Path, undisturbed: dict[str, Any], tally: TrainingKillTally) -> None:
    """The rows of a killed and resumed run, compared with those of the uninterrupted one."""
    results = read_results(folder)
    rows = dict(results)
    tally.doubled += len(results) - len(rows)
    tally.lost += len(undisturbed.keys() - rows.keys())
    tally.altered += sum(rows[key] != undisturbed.get(key) for key in rows)
    tally.leftover_checkpoints += (folder / "out" / CHECKPOINT_FOLDER).exists()
    tally.complete += 1


def main(kills: int, seed: int) -> None:
    order, tally, start = random.Random(seed), TrainingKillTally(), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "sweep.toml").write_text(SUITE)
        run_and_kill(Path(name), None, tally)
        undisturbed = dict(read_results(Path(name)))
    print(f"{len(undisturbed)} cases in peace, {time.perf_counter() - start:.0f} s", flush=True)
    while tally.kills < kills:
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "sweep.toml").write_text(SUITE)
            while tally.kills < kills and not run_and_kill(Path(name), order.uniform(0, LONGEST_S), tally):
                pass
            run_and_kill(Path(name), None, tally)
            compare(Path(name), undisturbed, tally)
        print(f"{time.perf_counter() - start:.0f} s: {tally}", flush=True)
    raise SystemExit(not tally.sound)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    main(**vars(parser.parse_args()))
