"""Mechanisms that start processes, or write into the pipes between processes: they lose no rows and leave nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import list_descendants, wait_until_gone
from shell import run_fresh
from tiny_suites import write_faulty_suite

import efficient_attn as ea
from efficient_attn.engines import descendants

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc and subreapers"),
    pytest.mark.slow,
]

PLUGIN = '''
import ctypes, os, subprocess, sys
from pathlib import Path
import efficient_attn as ea

HERE = Path(__file__).parent


class Faulty(ea.SoftmaxAttention):
    """Exact attention that does something else first."""

    def compute(self, q, k, v, mask, **inputs):
        self.do()
        return super().compute(q, k, v, mask, **inputs)


def leave(command):
    with (HERE / "pids").open("a") as file:
        file.write(f"{subprocess.Popen(command, start_new_session=True).pid} ")


@ea.register("zz_forks", family="full")
class Forks(Faulty):
    """It forks in the first calls, and both go on."""

    calls = 0

    def do(self):
        Forks.calls += 1
        if Forks.calls <= 3:
            os.fork()


@ea.register("zz_waits", family="full")
class Waits(Faulty):
    """It forks, the copy exits as programs do, and it waits for the copy."""

    def do(self):
        if not (pid := os.fork()):
            sys.exit(3)
        os.waitpid(pid, 0)


@ea.register("zz_leaves", family="full")
class Leaves(Faulty):
    """It leaves a process with a session of its own."""

    started = False

    def do(self):
        if not Leaves.started:
            leave(["sleep", "1000"])
        Leaves.started = True


@ea.register("zz_leaves_and_crashes", family="full")
class LeavesAndCrashes(Faulty):
    """It leaves a process, and crashes."""

    def do(self):
        with (HERE / "pids").open("a") as file:
            file.write(f"{subprocess.Popen(['sleep', '1000']).pid} ")
        ctypes.string_at(0)


@ea.register("zz_leaves_and_hangs", family="full")
class LeavesAndHangs(Faulty):
    """It leaves a process with a session of its own, and hangs."""

    def do(self):
        leave(["sleep", "1000"])
        ctypes.PyDLL(None).sleep(1000)


@ea.register("zz_writes", family="full")
class Writes(Faulty):
    """It writes into all pipes but the standard streams."""

    def do(self):
        for fd in range(3, 64):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith("pipe"):
                    os.write(fd, (16).to_bytes(4, "big"))
            except OSError:
                continue


@ea.register("zz_writes_and_hangs", family="full")
class WritesAndHangs(Writes):
    """It writes what could be the beginning of a message, and hangs."""

    def do(self):
        super().do()
        ctypes.PyDLL(None).sleep(1000)
'''
FOREIGN = "something else than results was written into the pipe of results, by this case"
EXPECTED = {  # status, and part of the reason
    "zz_forks": ("ok", "it left "),
    "zz_waits": ("ok", ""),
    "zz_leaves": ("ok", "it left 1 process running: sleep"),
    "zz_leaves_and_crashes": ("crashed", "killed by SIGSEGV"),
    "zz_leaves_and_hangs": ("timeout", "in do (processes.py:"),
    "zz_writes": ("crashed", FOREIGN),
    "zz_writes_and_hangs": ("crashed", FOREIGN),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXPECTED)
def test_every_case_has_a_row_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    (tmp_path / "processes.py").write_text(PLUGIN)
    write_faulty_suite(tmp_path / "suite.toml", ["full", name, "linear"], plugins=["processes.py"])
    done = run_fresh("run", "suite.toml", "--out", "out", cwd=tmp_path)
    rows = ea.load(tmp_path / "out").set_index("variant")
    assert sorted(rows.index) == sorted(["full", name, "linear"])
    status, reason = EXPECTED[name]
    assert done.code == int(status != "ok"), done.err
    assert (rows.status["full"], rows.status[name], rows.status["linear"]) == ("ok", status, "ok")
    assert reason in ("" if rows.isna().reason[name] else rows.reason[name])
    if reason != FOREIGN:  # which also writes into the pipes of Python's own servers
        assert "Traceback" not in done.err
    pids = tmp_path / "pids"
    left = {int(pid) for pid in pids.read_text().split()} if pids.exists() else set()
    assert bool(left) == ("leaves" in name)
    assert not wait_until_gone(left)


def test_a_process_that_is_no_worker_ends_nothing() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        assert descendants.end_leftovers() == []
        assert process.poll() is None
        process.kill()


def test_descendants_of_descendants_end_too_unless_they_are_exempt() -> None:
    # of a process of this test's own: the test session has other descendants
    inner = "import subprocess, time; subprocess.Popen(['sleep', '99'], start_new_session=True); time.sleep(98)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer]) as process:
        while len(pids := list_descendants(process.pid)) < 2:
            time.sleep(0.02)
        assert descendants.end_descendants(process.pid, exempt=("time.sleep(98)",)) == []
        assert len(descendants.end_descendants(process.pid)) == 2
        assert not wait_until_gone(set(pids))
        process.kill()
