"""Runs on the nodes of a Ray cluster, two of which are simulated here, and as jobs of submitit's local executor."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import RayNodes, start_nodes
from shell import Command, Done, run_fresh

from efficient_attn.results.store import read, read_sessions

has_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
has_submitit = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")

SUITE = """
title          = "Several machines"
baseline       = "full"
variant        = [{ name = "full" }]
rounds         = 2
max_rounds     = 2
processes      = 1
budget_s       = 1
pairs          = 2
vocab          = 32
examples       = 32
seeds          = 1
steps          = 24
learning_rates = [1e-3, 2e-3]
dims           = { heads = 2, head_dim = 8 }

[[part]]
name    = "training"
measure = ["mqar"]
axes    = { seq_len = [16], threads = [1], causal = [true] }
[[part]]
name    = "speed"
measure = ["forward"]
axes    = { seq_len = [8, 16], threads = [1] }
"""
PLUGIN = """
import efficient_attn as ea
from efficient_attn.patterns import Band

@ea.register("mine", family="sparse")
class Mine(ea.SparseAttention):
    def __init__(self, *, window: int = 4) -> None:
        super().__init__(Band(-window, window))
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """In a new interpreter, as Ray has threads and sockets of its own."""
    return lambda *arguments: run_fresh(*arguments, cwd=tmp_path)


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with start_nodes(2) as started:
        yield started


def _list_results(folder: Path) -> list[Any]:
    """What does not depend on time."""
    rows = [record.row for record in read(folder)]
    return [(row.case_key, row.status, row.accuracy, row.loss, row.steps) for row in rows]


def _list_keys(folder: Path) -> list[str]:
    """The keys of the planned cases."""
    return [case["case_key"] for case in json.loads(run_fresh("plan", "suite.toml", "--json", cwd=folder).out)]


@has_ray
@pytest.mark.slow
@pytest.mark.sampled(4)
def test_two_nodes_give_the_rows_of_a_local_run(command: Command, tmp_path: Path, nodes: RayNodes) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "mine.py").write_text(PLUGIN)
    options = ("run", "suite.toml", "--plugin", "mine.py", "--variant", "full,mine")
    local = command(*options, "--out", "local")
    assert local.code == 0, local.err
    done = command(*options, "--out", "out", "--engine", "ray", "--address", nodes.address, "--json")
    assert done.code == 0, done.err
    assert _list_results(tmp_path / "out") == _list_results(tmp_path / "local"), "also in this order"
    sessions = read_sessions(tmp_path / "out")
    assert len({session["node"] for session in sessions}) == len(sessions) == 2
    assert all(session["finished"] for session in sessions)
    assert {record.row.run_id for record in read(tmp_path / "out")} <= {session["run_id"] for session in sessions}
    assert not (tmp_path / "out" / "checkpoints").exists()
    again = command(*options, "--out", "out", "--resume", "--engine", "ray", "--address", nodes.address)
    assert again.code == 0, again.err
    assert len(read_sessions(tmp_path / "out")) == 2, "nothing was left to measure"


@has_ray
@pytest.mark.slow
@pytest.mark.sampled(3)
def test_a_killed_program_costs_no_row(tmp_path: Path, nodes: RayNodes) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    command = [sys.executable, "-m", "efficient_attn", "run", "suite.toml", "--out", "out", "--json"]
    command += ["--engine", "ray", "--address", nodes.address]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (killed := nodes.list_programs()) and time.monotonic() < deadline:
        time.sleep(0.2)
    sessions = tmp_path / "out" / "run.json"
    while not sessions.is_file() and time.monotonic() < deadline:  # a node has begun
        time.sleep(0.1)
    os.kill(killed[0], signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert json.loads(out)["statuses"].keys() <= {"ok", "skipped"}
    assert "was lost: " in err
    keys = [json.loads(line)["case_key"] for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert len(keys) == len(set(keys)) == len(_list_keys(tmp_path))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--address", "auto"), "run: --address needs --engine ray"),
        (("--only-machine", "x"), "run: --only-machine needs --engine ray"),
        (("--node-timeout", "5", "--engine", "slurm"), "run: --node-timeout needs --engine ray"),
        (("--nodes", "2"), "run: --nodes needs --engine slurm"),
        (("--slurm", "partition=x", "--engine", "ray"), "run: --slurm needs --engine slurm"),
        (("--slurm", "partition"), "argument --slurm: 'partition' is not NAME=VALUE"),
        (("--engine", "slurm"), "run: --engine slurm needs --nodes N and --out DIR"),
        (("--engine", "ray", "--turns", "7"), "run: --turns does not go with --engine ray"),
    ],
)
def test_options_of_another_engine(command: Command, options: tuple[str, ...], text: str) -> None:
    _check_refusal(command("run", "quickstart", *options), text)


def _check_refusal(done: Done, text: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert done.err.strip().count("\n") == 0


@has_submitit
@pytest.mark.slow
@pytest.mark.sampled(3)
def test_jobs_of_the_local_executor_give_the_rows_of_one_run(command: Command, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(SUITE)
    options = ("run", "suite.toml", "--part", "speed", "--out", "out", "--engine", "slurm", "--nodes", "2")
    options += ("--slurm", "cluster=local")
    done = command(*options)
    assert done.code == 0, done.err
    assert "cases: 2 ok" in done.out
    assert sorted(line[6:] for line in done.err.splitlines()) == ["out.parts/1: finished", "out.parts/2: finished"]
    assert [record.row.status for record in read(tmp_path / "out")] == ["ok"] * 2
    content = (tmp_path / "out" / "rows.jsonl").read_bytes()
    assert command(*options, "--resume").code == 0
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == content
    _check_refusal(command(*options), "out.parts/1.json: exists; choose another --out")
    _check_refusal(command(*options, "--seed", "3", "--resume"), "not a part of this plan; repeat the options")
