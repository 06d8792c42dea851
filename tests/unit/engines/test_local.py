"""The local engine: messages of workers, reported failures, memory limits, and processes that do not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import toy_jobs
from processes import list_descendants, wait_until_gone
from toy_jobs import Allocates, Ends, Forks, HangsAndTells, Tells

from efficient_attn.engines import local
from efficient_attn.engines.job import WorkerDied
from efficient_attn.engines.local import LocalEngine, Method, choose_method
from efficient_attn.instruments.search_path import PACKAGE

pytestmark = pytest.mark.slow

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
METHODS = get_args(Method)
PROCESSES = tuple(m for m in METHODS if m != "inline")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.sampled(4)
def test_messages_of_a_worker_arrive_in_order(method: Any) -> None:
    engine = LocalEngine(method)
    *messages, (pid, torch_was_imported) = engine.run(Tells(("a", 2, [3.0])))
    assert messages == ["a", 2, [3.0]]
    assert (pid == os.getpid()) == (method == "inline")
    assert engine.starts == (method != "inline")
    assert engine.working_s >= 0
    if method == "forkserver":
        assert torch_was_imported  # the server had imported it


def test_each_job_runs_in_its_own_process() -> None:
    pids = {list(LocalEngine().run(Tells()))[-1][0] for _ in range(3)}
    assert len(pids) == 3
    assert not wait_until_gone(pids)


def test_fork_works_after_multithreaded_tensor_operations() -> None:
    multiplied = torch.ones(600, 600) @ torch.ones(600, 600)  # in this process; the server itself must not run any
    assert multiplied[0, 0] == 600
    for _ in range(2):
        assert list(LocalEngine().run(Ends("multiply", 60.0))) == ["begun"]


def test_waiting_for_a_processor_extends_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.monotonic()
    monkeypatch.setattr(local, "_read_waiting_s", lambda pid: min(time.monotonic() - start, 3.0))
    with pytest.raises(WorkerDied):
        list(LocalEngine().run(Ends("hang_in_python", 0.5)))
    assert time.monotonic() - start > 3


@LINUX
def test_the_time_that_a_process_waits_is_read(tmp_path: Path) -> None:
    """More processes than processors, so that each waits."""
    burn = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        deadline = time.monotonic() + 60
        while local._read_waiting_s(burn[0].pid) < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for process in burn:
            process.kill()
            process.wait()
    assert local._read_waiting_s(burn[0].pid) == 0  # it has ended


FAILURES = {
    "segfault": ("crashed", "killed by SIGSEGV, in segfault (toy_jobs.py:"),
    "SIGABRT": ("crashed", "killed by SIGABRT, in kill (toy_jobs.py:"),
    "SIGKILL": ("crashed", "killed by SIGKILL"),
    "SIGTERM": ("interrupted", "stopped from outside (SIGTERM)"),
    "leave": ("crashed", "the process exited with code 3"),
    "exit": ("crashed", "the process exited with code 4"),
    "fail": ("error", "KeyError: 'lost'"),
    "exhaust": ("oom", "RuntimeError: CUDA out of memory."),
    "hang_in_c": ("timeout", "stopped, in hang_in_c (toy_jobs.py:"),
    "hang_in_python": ("timeout", "stopped, in hang_in_python (toy_jobs.py:"),
}


@LINUX
@pytest.mark.parametrize("failure", FAILURES)
def test_failures_are_reported_with_case_stage_and_reason(failure: str) -> None:
    messages = []
    with pytest.raises(WorkerDied) as caught:
        messages.extend(LocalEngine().run(Ends(failure, 1.5 if failure.startswith("hang") else 60.0)))
    status, reason = FAILURES[failure]
    error = caught.value
    assert messages == ["begun"]  # messages before the failure are kept
    assert (error.case, error.stage, error.status) == (2, 1, status)
    assert reason in error.reason
    assert "\n" not in error.reason


@LINUX
@pytest.mark.sampled(4)
def test_failures_of_spawned_workers_are_reported() -> None:
    with pytest.raises(WorkerDied, match="killed by SIGSEGV, in segfault"):
        list(LocalEngine("spawn").run(Ends("segfault")))


@LINUX
def test_only_allocations_beyond_the_limit_fail() -> None:
    mib = 2**20
    (refused,) = LocalEngine().run(Allocates(64 * mib, 80 * mib))
    assert "can't allocate memory" in refused
    assert list(LocalEngine().run(Allocates(64 * mib, 48 * mib))) == [48 * mib]


@LINUX
def test_closing_the_messages_of_a_hanging_worker_ends_it() -> None:
    list(LocalEngine().run(Tells()))  # the server stays
    others = list_descendants(os.getpid())
    messages = LocalEngine().run(Ends("hang_in_python"))
    assert next(messages) == "begun"
    workers = list_descendants(os.getpid()) - others
    assert workers
    messages.close()
    assert not wait_until_gone(workers)


@LINUX
def test_polled_workers_run_at_the_same_time() -> None:
    workers = [LocalEngine().poll(HangsAndTells("hang_in_python")) for _ in range(2)]
    pids: set[int] = set()
    deadline = time.monotonic() + 60
    while len(pids) < 2:  # neither has ended when the other one starts
        assert time.monotonic() < deadline
        pids |= {message for worker in workers if (message := next(worker)) is not None}
    assert [next(worker) for worker in workers] == [None, None]
    assert pids <= list_descendants(os.getpid())
    for worker in workers:
        worker.close()  # type: ignore[attr-defined]
    assert not wait_until_gone(pids)


@LINUX
@pytest.mark.parametrize("failure", ["SIGKILL", "fail", "hang_in_python"])
def test_failures_of_polled_workers_are_reported(failure: str) -> None:
    status, reason = FAILURES[failure]
    messages = []
    with pytest.raises(WorkerDied) as caught:
        messages.extend(LocalEngine().poll(Ends(failure, 1.0)))
    assert [message for message in messages if message is not None] == ["begun"]
    assert len(messages) > 1
    assert caught.value.status == status
    assert reason in caught.value.reason


@pytest.mark.sampled(6)
@LINUX
@pytest.mark.parametrize("method", PROCESSES)
@pytest.mark.parametrize("hang", ["hang_in_c", "hang_in_python"])
def test_workers_exit_when_their_parent_is_killed(hang: str, method: str) -> None:
    code = (
        "import toy_jobs\nfrom efficient_attn.engines.local import LocalEngine\n"
        f"for pid in LocalEngine({method!r}).run(toy_jobs.HangsAndTells({hang!r})): print(pid, flush=True)"
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


@LINUX
def test_copies_that_a_job_forks_send_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for fails in (False, True):
        pids = set(LocalEngine().run(Forks(fails)))
        assert len(pids) == 2, "the worker and its copy"
        assert not wait_until_gone(pids)
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_is_still_ending_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(self: Any) -> None:
        raise ValueError("Cannot close a process while it is still running")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.close", close)
    assert list(LocalEngine().run(Ends("multiply"))) == ["begun"]


@LINUX
@pytest.mark.parametrize("method", PROCESSES)
@pytest.mark.sampled(6)
def test_ctrl_c_while_workers_start_prints_nothing(method: str, tmp_path: Path) -> None:
    """Modules are imported by the fork server before it ignores Ctrl-C, and by workers."""
    (tmp_path / "slow_import.py").write_text(
        "import pathlib, sys, time\n"
        "if 'multiprocessing.spawn' in sys.modules or 'multiprocessing.forkserver' in sys.modules:\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    blocked = next(line.split()[1] for line in lines if line.startswith('SigBlk'))\n"
        "    pathlib.Path('blocked').write_text(blocked)\n"
        "    pathlib.Path('started').touch()\n"
        "    time.sleep(3)\n"
    )
    code = (
        "import signal, toy_jobs\nfrom efficient_attn.engines.local import LocalEngine\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "if __name__ == '__main__':\n"
        f"    try: print(*LocalEngine({method!r}, preload=('slow_import',)).run(toy_jobs.Tells()))\n"
        "    except KeyboardInterrupt: print('stopped')\n"
        "else: import slow_import\n"
    )
    (tmp_path / "main.py").write_text(code)
    parent = subprocess.Popen(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(parent.pid, signal.SIGINT)
    assert int((tmp_path / "blocked").read_text(), 16) & 1 << (signal.SIGINT - 1)  # not only killed before it prints
    assert parent.communicate(timeout=60) == ("stopped\n", "")  # once the workers have ended as well


SCRIPT = """
import os, sys
import efficient_attn
from efficient_attn.engines.local import LocalEngine
from efficient_attn.instruments.search_path import read_search_path

class Answers:
    def run(self, board, send):
        board.set_stage(0, 0, 60.0)
        send((efficient_attn.__file__, read_search_path()))

if __name__ == "__main__":
    before = read_search_path()
    answer = next(LocalEngine(sys.argv[1]).run(Answers()))
    assert answer == (efficient_attn.__file__, before) and read_search_path() == before, answer
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", PROCESSES)
def test_workers_run_the_package_of_their_parent(method: Method, tmp_path: Path) -> None:
    """Not the one in the folder where the command is given, from which Python imports what ``-c`` names. Programs that
    workers start find the variables of their user."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "script.py").write_text(SCRIPT)
    for name in ("efficient_attn", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the other copy')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "scripts/script.py", method]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_worker_that_imports_another_copy_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PACKAGE", Path("/elsewhere/efficient_attn"))
    with pytest.raises(WorkerDied, match=f"workers import {PACKAGE}, the command /elsewhere/efficient_attn: remove"):
        list(LocalEngine().run(Tells()))


@LINUX
@pytest.mark.parametrize("trace", ["trace", "removed/trace"])
def test_a_worker_whose_parent_was_interrupted_prints_nothing(trace: str, tmp_path: Path) -> None:
    """Its pipe is closed, or also its folder removed."""
    code = (
        "import multiprocessing, toy_jobs\nfrom efficient_attn.engines.worker import WorkerSetup, run_worker\n"
        "from efficient_attn.instruments.search_path import PACKAGE\n"
        "receiver, sender = multiprocessing.Pipe(duplex=False)\nreceiver.close()\n"
        f"setup = WorkerSetup(PACKAGE, {{}}, {trace!r}, (), (), {{}})\n"
        "run_worker(toy_jobs.Tells(), sender, [0.0, 0.0, 0.0], setup)"
    )
    path = os.pathsep.join(sys.path)
    command, environment = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_the_default_start_method_is_an_available_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing as mp

    assert choose_method() == "forkserver"
    monkeypatch.setattr(mp, "get_all_start_methods", lambda: ["spawn"])
    assert choose_method() == "spawn"
