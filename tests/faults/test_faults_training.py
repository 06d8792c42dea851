"""Kills during training: `--resume` continues from the checkpoint, with the same result as an uninterrupted run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from processes import list_descendants, wait_until_gone
from shell import run, start, wait

from efficient_attn.instruments.environment.machine import count_usable_cores
from efficient_attn.results.checkpoints import CHECKPOINT_FOLDER
from efficient_attn.results.store import read

pytestmark = pytest.mark.slow

# exact attention that records its calls in training, and blocks at the sixth while the file "hold" exists
COUNTS = """
import os, time
from dataclasses import replace
from pathlib import Path
import torch
import efficient_attn as ea
from efficient_attn.tasks import register_task
from efficient_attn.tasks.problems.mqar import MQAR
from efficient_attn.tasks.training.learning import make_task

register_task(make_task(replace(MQAR, name="tiny", recipe=replace(MQAR.recipe, d_model=16, heads=2, batch=4))))

@ea.register("zz_counts", family="full")
class Counts(ea.SoftmaxAttention):
    "Exact attention that counts its calls."

    def compute(self, q, k, v, mask, **inputs):
        if torch.is_grad_enabled():
            with open("calls", "ab") as calls:
                calls.write(b".")
            while Path("hold").exists() and os.path.getsize("calls") >= 6:
                Path("reached").write_text(str(os.getpid()))
                time.sleep(0.01)
        return super().compute(q, k, v, mask, **inputs)
"""
STEPS = 10
SUITE = f"""
title        = "Tiny training"
measure      = ["tiny"]
plugins      = ["counts.py"]
axes         = {{ seq_len = [16], threads = [1] }}
variant      = [{{ name = "zz_counts" }}]
learning_rates = [1e-3]
seeds        = 1
vocab        = 32
pairs        = 2
examples     = 8
steps        = {STEPS}
checkpoint_s = 1e-9
"""
ARGUMENTS = ("run", "sweep.toml", "--out", "out", "--resume", "--retry-failed")
ONE = ("--quick", "--set", f"steps={4 * STEPS}")  # one attempt of STEPS steps: --quick divides by four


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _write_files(tmp_path)


def _write_files(folder: Path) -> Path:
    (folder / "counts.py").write_text(COUNTS)
    (folder / "sweep.toml").write_text(SUITE)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of an uninterrupted run."""
    folder = _write_files(tmp_path_factory.mktemp("uninterrupted"))
    return _finish(folder, STEPS)


def _finish(folder: Path, calls: int) -> dict[str, Any]:
    """Run to the end, after so many calls in all, and return the results in its only row."""
    done = run(*ARGUMENTS, *ONE, cwd=folder)
    assert done.code == 0, done.err
    (record,) = read(folder / "out")
    assert record.row.status == "ok", record.row.reason
    assert (folder / "calls").stat().st_size == calls
    assert not (folder / "out" / CHECKPOINT_FOLDER).exists()
    row = record.row
    times = "train.train_s", "train.step_ms", "train.s_to_90"
    extra = {name: x for name, x in row.extra.items() if name not in times}
    return {"key": row.case_key, "accuracy": row.accuracy, "loss": row.loss, **extra, **record.samples}


@pytest.mark.parametrize("victim", ["command", "worker"])
def test_killed_training_continues_from_its_checkpoint(
    victim: str, folder: Path, uninterrupted: dict[str, Any]
) -> None:
    (folder / "hold").touch()
    pid = start(*ARGUMENTS, *ONE, cwd=folder)
    deadline = time.monotonic() + 60
    reached, text = folder / "reached", ""
    while not text:  # the worker rewrites it repeatedly, so that it can be empty when read
        assert time.monotonic() < deadline
        time.sleep(0.02)
        text = reached.read_text() if reached.exists() else ""
    worker, workers = int(text), list_descendants(pid)
    assert worker in workers
    os.kill(pid if victim == "command" else worker, signal.SIGKILL)
    code = wait(pid)
    assert not wait_until_gone(workers)
    rows = [record.row for record in read(folder / "out")]
    if victim == "command":
        assert (code, rows) == (-signal.SIGKILL, [])
    else:
        assert [row.status for row in rows] == ["crashed"]
        assert code == 1
    assert len(list((folder / "out" / CHECKPOINT_FOLDER).glob("*.pt"))) == 1
    (folder / "hold").unlink()
    assert _finish(folder, STEPS + 1) == uninterrupted  # only the killed step is repeated


UPTRAINING = """
title          = "Tiny uptraining"
measure        = ["tiny"]
plugins        = ["counts.py"]
axes           = { seq_len = [16], threads = [1] }
variant        = [{ name = "full" }, { name = "mqa" }]
rates          = { full = 4e-3, mqa = 4e-3 }
uptrained_from = "full"
shares         = [0, 0.5]
seeds          = 2
vocab          = 32
pairs          = 2
examples       = 8
steps          = 20
checkpoint_s   = 1e-9
"""
TIMES = "train.train_s", "train.step_ms", "train.s_to_90", "train.jobs"


def _read_results(folder: Path) -> dict[str, Any]:
    results = {}
    for record in read(folder / "out"):
        extra = {name: x for name, x in record.row.extra.items() if name not in TIMES}
        results[record.row.case_key] = asdict(record.row) | {"run_id": None, "extra": extra}, record.samples
    return results


@pytest.mark.skipif(count_usable_cores() < 2, reason="needs two cores")
@pytest.mark.sampled(6)
def test_killed_uptraining_starts_from_the_same_originals(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        (_write_files(tmp_path / name) / "sweep.toml").write_text(UPTRAINING)
    done = run(*ARGUMENTS, cwd=tmp_path / "whole")
    assert done.code == 0, done.err
    folder, deadline = tmp_path / "killed", time.monotonic() + 120
    pid = start(*ARGUMENTS, "--jobs", "2", cwd=folder)
    while not ((folder / "out/run.json").exists() and any("uptrain" in key for key in _read_results(folder))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = list_descendants(pid)
    os.kill(pid, signal.SIGKILL)
    assert wait(pid) == -signal.SIGKILL
    assert not wait_until_gone(workers)
    done = run(*ARGUMENTS, "--jobs", "2", cwd=folder)
    assert done.code == 0, done.err
    assert _read_results(folder) == _read_results(tmp_path / "whole")
