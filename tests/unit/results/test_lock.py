"""One writer for each folder: an error names the owner of the lock, which is released when its process ends."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from efficient_attn.errors import UsageError
from efficient_attn.results.lock import HOLDER_FILE, LOCK_FILE, lock_folder
from efficient_attn.results.store import RunWriter, read

HOLDS = """
import subprocess, sys, time
from pathlib import Path
from efficient_attn.results.store import RunWriter
with RunWriter(Path(sys.argv[1])):
    subprocess.Popen([sys.executable, "-c", "print('held', flush=True); input()"], close_fds=False)
    time.sleep(60)
"""


def test_the_lock_names_its_holder(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        held = json.loads((tmp_path / HOLDER_FILE).read_text())
        assert (held["pid"], held["host"]) == (os.getpid(), platform.node())
        message = rf"in use by process {os.getpid()} on host {re.escape(platform.node())} since {held['since'][:4]}-"
        with (
            pytest.raises(UsageError, match=rf"^{tmp_path}: {message}.*; wait for it, or choose another --out$"),
            lock_folder(tmp_path),
        ):
            pass
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_an_unreadable_owner_is_another_process(content: str, tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        (tmp_path / HOLDER_FILE).write_text(content)
        with pytest.raises(UsageError, match="in use by another process; wait"), lock_folder(tmp_path):
            pass


@pytest.mark.parametrize("resume", [True, False])
def test_a_second_writer_is_refused_and_the_first_continues(resume: bool, tmp_path: Path) -> None:
    with RunWriter(tmp_path):
        for _ in range(2):
            with pytest.raises(UsageError, match=f"in use by process {os.getpid()} "):
                RunWriter(tmp_path, resume=resume)
    RunWriter(tmp_path, resume=True).close()


def test_a_writer_that_fails_to_start_holds_no_lock(tmp_path: Path) -> None:
    RunWriter(tmp_path).close()
    for _ in range(2):
        with pytest.raises(UsageError, match="not empty"):
            RunWriter(tmp_path)
    RunWriter(tmp_path, resume=True).close()


def test_a_leftover_lock_file_has_no_effect(tmp_path: Path) -> None:
    for name in (LOCK_FILE, HOLDER_FILE):  # the first of them held the text itself, once
        (tmp_path / name).write_text(json.dumps({"pid": 1, "host": "elsewhere" * 20, "since": "long ago"}))
    with RunWriter(tmp_path):
        assert json.loads((tmp_path / HOLDER_FILE).read_text())["pid"] == os.getpid()


def test_sigkill_leaves_no_lock_even_if_a_child_lives_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(UsageError, match=f"in use by process {process.pid} "):
                RunWriter(tmp_path, resume=True)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        RunWriter(tmp_path, resume=True).close()  # the child ends with its input, after this
    assert read(tmp_path) == []


def test_a_program_started_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    with RunWriter(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        assert child.poll() is None
        RunWriter(tmp_path, resume=True).close()
    finally:
        child.communicate(b"\n")


@pytest.mark.parametrize("name", [LOCK_FILE, HOLDER_FILE])
def test_a_folder_in_the_way_is_reported(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    for _ in range(2):  # and nothing is held
        with pytest.raises(UsageError, match=r"cannot be written: Is a directory; choose another --out"):
            RunWriter(tmp_path)


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", missing)
    with pytest.raises(UsageError, match=r"cannot be written: Function not implemented; choose another --out"):
        RunWriter(tmp_path)
    monkeypatch.undo()
    RunWriter(tmp_path).close()  # nothing is left that would lock it


def test_another_thread_may_close(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    thread = threading.Thread(target=writer.close)
    thread.start()
    thread.join()
    RunWriter(tmp_path, resume=True).close()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_folder_that_is_read_only_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(UsageError, match=r"cannot be written: Permission denied; choose another --out"):
        RunWriter(tmp_path)
    tmp_path.chmod(0o755)
