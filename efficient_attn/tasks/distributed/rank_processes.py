"""Processes of a process group, started for one case.

The process of a rank is ``python -m efficient_attn.tasks.distributed.rank_measurement FOLDER RANK``; it reads the job
from the folder and writes its result there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...bench.measuring.row_errors import InvalidResult
from ...errors import UnsupportedError, UsageError
from ...instruments.search_path import make_search_path
from .rank_job import JOB, RankJob, RankResult

MODULE = "efficient_attn.tasks.distributed.rank_measurement"
POLL_S = 0.05
ORDER = {"ended": 1, "killed": 2}  # of errors: an exception says most
ERRORS: Mapping[str, type[Exception]] = {e.__name__: e for e in (UnsupportedError, UsageError, InvalidResult)}


def run_ranks(job: RankJob) -> list[RankResult]:
    """The results by rank. Raises the error of the first rank that fails, and ends the others."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        (folder / JOB).write_text(json.dumps(asdict(job)))
        environment = os.environ | make_search_path() | {"OMP_NUM_THREADS": str(job.threads)}
        if job.device == "cpu":
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        processes = [_start(folder, rank, environment) for rank in range(job.ranks)]
        try:
            # a rank that fails ends all, as the others would wait for it
            while any(process.poll() is None for process in processes) and not any(p.poll() for p in processes):
                time.sleep(POLL_S)
            codes = [process.poll() for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        outcomes = [_read(folder, rank, code) for rank, code in enumerate(codes)]
    for outcome in sorted(outcomes, key=lambda outcome: ORDER.get(outcome.get("error", ""), 0)):
        if "error" in outcome:
            raise ERRORS.get(outcome["error"], RuntimeError)(outcome["message"])
    return [RankResult(**outcome) for outcome in outcomes]


def _start(folder: Path, rank: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (folder / f"{rank}.log").open("wb") as log:
        command = [sys.executable, "-m", MODULE, str(folder), str(rank)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environment))


def _read(folder: Path, rank: int, code: int | None) -> dict[str, Any]:
    """What a rank wrote, or that it ended without a result. code: None if it was ended because of another rank."""
    path = folder / f"{rank}.json"
    if path.exists():
        return json.loads(path.read_text())
    lines = (folder / f"{rank}.log").read_text(errors="replace").strip().splitlines() or ["no output"]
    return {"error": "ended" if code else "killed", "message": f"rank {rank} ended with status {code}: {lines[-1]}"}
