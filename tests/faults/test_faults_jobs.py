"""Several trainings at once: the results of one after another, also after killed workers and interruptions; timed cases
run alone."""

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

pytestmark = [pytest.mark.slow, pytest.mark.skipif(count_usable_cores() < 2, reason="needs two cores")]

# exact attention that records its process in training; it waits once until it has run at the same time as another
# process, and at its tenth call while the file "hold" exists
WATCHES = """
import os, time
from dataclasses import replace
from pathlib import Path
import torch
import efficient_attn as ea
from efficient_attn.tasks import register_task
from efficient_attn.tasks.problems.mqar import MQAR
from efficient_attn.tasks.training.learning import make_task

for name in ("tiny", "other"):
    register_task(make_task(replace(MQAR, name=name, recipe=replace(MQAR.recipe, d_model=16, heads=2, batch=4))))

def list_others():
    return [name for name in os.listdir("busy") if name != str(os.getpid()) and Path("/proc", name).exists()]

@ea.register("zz_watches", family="full")
class Watches(ea.SoftmaxAttention):
    "Exact attention that records what runs at the same time."
    calls = 0

    def compute(self, q, k, v, mask, **inputs):
        if mask.causal:
            Path("busy", str(os.getpid())).touch()
            deadline = time.monotonic() + 30
            while Path("meet").exists() and not Path("met").exists() and time.monotonic() < deadline:
                if list_others():
                    Path("met").touch()
                time.sleep(0.01)
            self.calls += torch.is_grad_enabled()
            while Path("hold").exists() and self.calls >= 10:
                Path("held", str(os.getpid())).touch()
                time.sleep(0.01)
        elif list_others():
            Path("disturbed").touch()
        return super().compute(q, k, v, mask, **inputs)

@ea.register("zz_also", family="full")
class Also(Watches):
    "The same."
"""
SUITE = """
title          = "Tiny training"
plugins        = ["watches.py"]
rounds         = 2
max_rounds     = 2
axes           = { seq_len = [16], threads = [1] }
dims           = { heads = 2, head_dim = 8 }
variant        = [{ name = "zz_watches" }, { name = "zz_also" }]
learning_rates = [1e-3, 4e-3]
seeds          = 2
vocab          = 32
pairs          = 2
examples       = 8
steps          = 12
checkpoint_s   = 1e-9
[[part]]
name    = "before"
measure = ["tiny"]
[[part]]
name    = "timed"
measure = ["forward"]
[[part]]
name    = "after"
measure = ["other"]
"""
ARGUMENTS = ("run", "sweep.toml", "--out", "out", "--resume", "--retry-failed")
TIMES = ("train.train_s", "train.step_ms", "train.s_to_90", "train.jobs")


def _write_files(folder: Path) -> Path:
    (folder / "watches.py").write_text(WATCHES)
    (folder / "sweep.toml").write_text(SUITE)
    for name in ("busy", "held"):
        (folder / name).mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _write_files(tmp_path)


def _read_results(folder: Path) -> dict[str, Any]:
    """The results of all trainings by case, in order, without times."""
    results = {}
    for record in read(folder / "out"):
        if record.row.mode != "forward":
            row = asdict(record.row) | {"run_id": None, "extra": None}
            extra = {name: value for name, value in record.row.extra.items() if name not in TIMES}
            results[record.row.case_key] = row, extra, record.samples
    return results


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of trainings one after another."""
    folder = _write_files(tmp_path_factory.mktemp("expected"))
    done = run(*ARGUMENTS, cwd=folder)
    assert done.code == 0, done.err
    assert _list_jobs(folder) == {1}
    return _read_results(folder)


def _list_jobs(folder: Path) -> set[Any]:
    return {r.row.extra["train.jobs"] for r in read(folder / "out") if r.row.status == "ok" and r.row.mode == "train"}


def _check_completed(folder: Path, expected: dict[str, Any]) -> None:
    results = _read_results(folder)
    assert list(results) == list(expected), "in the order of the plan"
    assert results == expected
    assert not (folder / "out" / CHECKPOINT_FOLDER).exists()


@pytest.mark.sampled(6)
def test_parallel_trainings_have_equal_results_and_timed_cases_run_alone(
    folder: Path, expected: dict[str, Any]
) -> None:
    (folder / "meet").touch()
    done = run(*ARGUMENTS, "--jobs", "2", cwd=folder)
    assert done.code == 0, done.err
    assert (folder / "met").exists(), "two ran at the same time"
    assert not (folder / "disturbed").exists()
    assert _list_jobs(folder) == {2}
    assert sum(record.row.mode == "forward" for record in read(folder / "out")) == 2
    _check_completed(folder, expected)


def _start_and_hold(folder: Path) -> tuple[int, set[int]]:
    """Start a run, and wait until two workers hold. Returns the ids of the command and of these."""
    (folder / "hold").touch()
    pid = start(*ARGUMENTS, "--jobs", "2", cwd=folder, err=str(folder / "err"))
    deadline = time.monotonic() + 60
    while len(held := {int(path.name) for path in (folder / "held").iterdir()}) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return pid, held


@pytest.mark.sampled(6)
def test_a_killed_worker_fails_only_its_case(folder: Path, expected: dict[str, Any]) -> None:
    pid, held = _start_and_hold(folder)
    os.kill(min(held), signal.SIGKILL)
    (folder / "hold").unlink()
    assert wait(pid) == 1
    rows = {record.row.case_key: record.row for record in read(folder / "out")}
    (crashed,) = (key for key, row in rows.items() if row.status not in ("ok", "skipped"))
    assert (rows[crashed].status, rows[crashed].reason) == ("crashed", "killed by SIGKILL, while it was evaluated")
    done = run(*ARGUMENTS, "--jobs", "2", cwd=folder)
    assert done.code == 0, done.err
    assert _read_results(folder)[crashed] == expected[crashed]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_trainings_are_resumed(sent: signal.Signals, folder: Path, expected: dict[str, Any]) -> None:
    pid, held = _start_and_hold(folder)
    workers = list_descendants(pid)
    assert held <= workers
    os.kill(pid, sent)
    assert wait(pid) == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(sent, -sent)
    assert not wait_until_gone(workers)
    assert len(list((folder / "out" / CHECKPOINT_FOLDER).glob("*.pt"))) == 2
    assert "Traceback" not in (folder / "err").read_text()
    (folder / "hold").unlink()
    done = run(*ARGUMENTS, "--jobs", "2", cwd=folder)
    assert done.code == 0, done.err
    _check_completed(folder, expected)
