"""Signals during a run: acknowledged rows are kept, and `--resume` completes the run."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TextIO

import pytest
from processes import list_descendants, wait_until_gone
from shell import TINY, WAITS, run, start, wait

import efficient_attn as ea

LENGTHS = (8, 12, 16, 20, 24)
EXPECTED = {  # exit code, and word of the message
    signal.SIGINT: (130, "interrupted"),
    signal.SIGTERM: (143, "terminated"),
    signal.SIGKILL: (-signal.SIGKILL, None),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "waits.py").write_text(WAITS)
    text = TINY.replace("[8, 16]", str(list(LENGTHS))).replace('"linear"', '"zz_waits"')
    text = text.replace("rounds ", 'plugins = ["waits.py"]\nrounds ')
    (tmp_path / "tiny.toml").write_text(text)
    return tmp_path


ARGUMENTS = ("run", "tiny.toml", "--out", "out", "--resume")


@dataclass
class Running:
    """A running command and its standard error."""

    pid: int
    err: TextIO
    code: int | None = None

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        self.code = wait(self.pid) if self.code is None else self.code
        return self.code


@contextmanager
def _running(folder: Path) -> Iterator[Running]:
    log = folder / "stderr"
    os.mkfifo(log)
    pid = start(*ARGUMENTS, cwd=folder, err=str(log))
    with log.open() as err:
        process = Running(pid, err)
        try:
            yield process
        finally:
            log.unlink()
            if process.code is None:
                os.kill(pid, signal.SIGKILL)
                process.wait()


def _lines(folder: Path) -> list[str]:
    path = folder / "out" / "rows.jsonl"
    return path.read_text().splitlines(keepends=True) if path.is_file() else []


def _complete(folder: Path, kept: list[str]) -> None:
    """Resume the run: it succeeds, earlier rows are unchanged, and every case has one row."""
    done = run(*ARGUMENTS, cwd=folder)
    assert done.code == 0, done.err
    assert _lines(folder)[: len(kept)] == kept
    rows = ea.load(folder / "out")
    assert Counter(zip(rows.variant, rows.seq_len, strict=True)) == Counter(product(("full", "zz_waits"), LENGTHS))
    assert rows.case_key.is_unique
    assert (folder / "out" / "report.html").is_file()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sent", EXPECTED)
def test_a_signal_during_a_case_keeps_acknowledged_rows(sent: signal.Signals, folder: Path) -> None:
    (folder / "hold").touch()
    with _running(folder) as process:
        deadline = time.monotonic() + 60
        while not (folder / "reached").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = list_descendants(process.pid)
        assert len(workers) >= 2  # the server and at least one
        os.kill(process.pid, sent)
        returned, err = process.wait(), process.err.read()
    assert not wait_until_gone(workers)
    acknowledged = [line for line in err.splitlines() if line.startswith("[")]
    kept = _lines(folder)
    assert len(kept) == len(acknowledged) == 4  # two lengths of two mechanisms; none of the third length
    assert len(ea.load(folder / "out")) == 4
    code, word = EXPECTED[sent]
    assert returned == code
    message = [f"efficient-attn: {word}; the rows so far are saved; continue with --resume --out out"] if word else []
    rest = [line for line in err.splitlines() if line not in acknowledged and "not ready to measure" not in line]
    assert rest == message
    (folder / "hold").unlink()
    _complete(folder, kept)


def test_kills_lose_and_duplicate_no_rows(folder: Path) -> None:
    kept: list[str] = []
    for _ in range(2):
        with _running(folder) as process:
            count = 0
            for line in process.err:
                count += line.startswith("[")
                if count == 3:
                    os.kill(process.pid, signal.SIGKILL)
                    break
            rest = [line for line in process.err if line.startswith("[")]
            process.wait()
        now = _lines(folder)
        assert now[: len(kept)] == kept
        assert len(now) >= len(kept) + 3 + len(rest)  # every acknowledged row is stored
        kept = now
    _complete(folder, kept)
