"""Workers: what they tell arrives, and whatever becomes of them is noticed, named, and leaves nothing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_jobs
from processes import wait_until_gone
from toy_jobs import Allocates, Ends, Tells

from efficient_attn.engines.job import Limits, WorkerDied
from efficient_attn.engines.local import METHODS, LocalEngine, choose_method

pytestmark = pytest.mark.slow

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
PROCESSES = tuple(m for m in METHODS if m != "inline")


@pytest.mark.parametrize("method", METHODS)
def test_what_a_worker_tells_arrives_in_order(method: Any) -> None:
    engine = LocalEngine(method)
    *things, (pid, torch_was_there) = engine.run(Tells(("a", 2, [3.0])))
    assert things == ["a", 2, [3.0]]
    assert (pid == os.getpid()) == (method == "inline")
    assert engine.times.starts == (method != "inline")
    assert engine.times.working_s >= 0
    if method == "forkserver":
        assert torch_was_there  # the server had imported it


def test_each_job_has_a_process_of_its_own() -> None:
    pids = {list(LocalEngine().run(Tells()))[-1][0] for _ in range(3)}
    assert len(pids) == 3
    assert not wait_until_gone(pids)


def test_a_fork_works_after_tensor_operations_of_many_threads() -> None:
    multiplied = torch.ones(600, 600) @ torch.ones(600, 600)  # here: the server must not have run any itself
    assert multiplied[0, 0] == 600
    for _ in range(2):
        assert list(LocalEngine().run(Ends("multiply", 60.0))) == ["begun"]


ENDINGS = {
    "segfault": ("crashed", "killed by SIGSEGV, in segfault (toy_jobs.py:"),
    "SIGABRT": ("crashed", "killed by SIGABRT, in kill (toy_jobs.py:"),
    "SIGKILL": ("crashed", "killed by SIGKILL"),
    "SIGTERM": ("interrupted", "stopped from outside (SIGTERM)"),
    "leave": ("crashed", "the process exited with code 3"),
    "exit": ("crashed", "the process exited with code 4"),
    "fail": ("error", "KeyError: 'lost'"),
    "hang_in_c": ("timeout", "stopped, in hang_in_c (toy_jobs.py:"),
    "hang_in_python": ("timeout", "stopped, in hang_in_python (toy_jobs.py:"),
}


@LINUX
@pytest.mark.parametrize("how", ENDINGS)
def test_every_end_is_reported_with_the_case_the_stage_and_the_reason(how: str) -> None:
    told = []
    with pytest.raises(WorkerDied) as caught:
        told.extend(LocalEngine().run(Ends(how, 1.5 if how.startswith("hang") else None)))
    status, says = ENDINGS[how]
    death = caught.value
    assert told == ["begun"]  # what came before the end is not lost
    assert (death.case, death.stage, death.status) == (2, 1, status)
    assert says in death.reason
    assert "\n" not in death.reason


@LINUX
def test_spawned_workers_are_watched_as_well() -> None:
    with pytest.raises(WorkerDied, match="killed by SIGSEGV, in segfault"):
        list(LocalEngine("spawn").run(Ends("segfault")))


@LINUX
def test_an_allocation_beyond_the_limit_fails_and_one_within_it_does_not() -> None:
    mib = 2**20
    (refused,) = LocalEngine().run(Allocates(64 * mib, 80 * mib))
    assert "can't allocate memory" in refused
    assert list(LocalEngine().run(Allocates(64 * mib, 48 * mib))) == [48 * mib]


def test_a_worker_goes_when_nobody_listens_any_more() -> None:
    messages = LocalEngine().run(Ends("hang_in_python"))
    assert next(messages) == "begun"
    messages.close()


@pytest.mark.sampled(4)
@LINUX
@pytest.mark.parametrize("method", PROCESSES)
@pytest.mark.parametrize("how", ["hang_in_c", "hang_in_python"])
def test_workers_die_with_their_parent(how: str, method: str) -> None:
    code = (
        "import toy_jobs\nfrom efficient_attn.engines.local import LocalEngine\n"
        f"for told in LocalEngine({method!r}).run(toy_jobs.HangsAndTells({how!r})): print(told, flush=True)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(toy_jobs.__file__).parent)},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert wait_until_gone({pid}, within=0)
    parent.kill()
    parent.wait()
    assert not wait_until_gone({pid})
    parent.stdout.close()


def test_the_default_is_what_the_system_has(monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing as mp

    assert choose_method() == "forkserver"
    monkeypatch.setattr(mp, "get_all_start_methods", lambda: ["spawn"])
    assert choose_method() == "spawn"


def test_a_death_and_limits_are_values() -> None:
    assert Limits() == Limits(timeout_s=None, memory_bytes=None)
    assert pickle.loads(pickle.dumps(Limits(timeout_s=3))) == Limits(timeout_s=3)
