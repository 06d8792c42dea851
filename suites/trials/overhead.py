"""The overhead of a run besides measuring, and the start of a worker.

    python suites/trials/overhead.py [SUITE [OPTIONS OF `run`...]]

Measuring is what workers do from first to last on a cell: inputs, gate, memory, warm-up, timing.
Everything else is overhead: starting workers, passing results on, writing them, statistics, the look at the machine's
ceilings excepted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efficient_attn.bench.measuring.conditions import PRELOAD
from efficient_attn.engines.job import StageBoard
from efficient_attn.engines.local import LocalEngine
from efficient_attn.results.stats import estimate_geometric_mean

STARTS = 30


@dataclass(frozen=True)
class EmptyJob:
    """An empty job."""

    def run(self, board: StageBoard, tell: Callable[[Any], None]) -> None:
        del board, tell


def measure_starts() -> list[float]:
    """Milliseconds from requesting a worker to its end, with a warm server."""
    engine = LocalEngine(preload=PRELOAD)
    list(engine.run(EmptyJob()))
    times = []
    for _ in range(STARTS):
        start = time.perf_counter()
        list(engine.run(EmptyJob()))
        times.append((time.perf_counter() - start) * 1e3)
    return times


def main(suite: str, options: list[str]) -> None:
    start = estimate_geometric_mean(measure_starts())
    print(f"a worker that does nothing, start to end: {start.value:.1f} ms ({start.low:.1f}-{start.high:.1f})")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        command = [sys.executable, "-m", "efficient_attn", "run", suite, *options, "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        (session,) = json.loads((Path(folder) / "run.json").read_text())["sessions"]
    account = session["account"]
    overhead = account["wall_s"] - account["working_s"]
    print(f"{suite}: {account['wall_s']:.1f} s of sweep, {account['working_s']:.1f} s of them measuring")
    print(f"overhead: {overhead:.2f} s, {overhead / account['wall_s']:.1%} of the sweep's wall time")
    print(f"{account['starts']} workers, {1e3 * account['starting_s'] / account['starts']:.1f} ms each until they ran")
    print(f"the command in all, imports, plan and report included: {wall:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "quickstart", sys.argv[2:])
