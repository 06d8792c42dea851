"""Limits of time and memory, and repeating cases that exceeded them."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import TINY, WAITS, Command

import efficient_attn as ea

OPTIONS = ("run", "tiny.toml", "--plugin", "mine.py", "--variant", "zz_waits", "--out", "out")


@pytest.mark.sampled(3)
def test_a_timeout_stops_a_case_and_retry_failed_repeats_it(tmp_path: Path, command: Command) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "mine.py").write_text(WAITS)
    (tmp_path / "hold").touch()
    done = command(*OPTIONS, "--timeout", "6")
    assert done.code == 1, done.err
    assert dict(ea.load(tmp_path / "out").groupby("seq_len").status.last()) == {8: "ok", 16: "timeout"}
    (tmp_path / "hold").unlink()
    assert command(*OPTIONS, "--resume").code == 1  # a failure is a result
    done = command(*OPTIONS, "--resume", "--retry-failed")
    assert done.code == 0, done.err
    assert dict(ea.load(tmp_path / "out").groupby("seq_len").status.last()) == {8: "ok", 16: "ok"}


HUGE = ("quickstart", "--part", "length", "--seq-len", "64M", "--variant", "full")


def test_plan_warns_of_more_memory_than_there_is(command: Command) -> None:
    done = command("plan", *HUGE)
    assert done.code == 0
    assert "peak memory about" in done.out
    assert done.err.startswith("efficient-attn: expected memory: part 'length', forward at 67,108,864 (full) about ")
    assert done.err.count("\n") == 1


def test_run_refuses_more_memory_than_the_machine_has(tmp_path: Path, command: Command) -> None:
    done = command("run", *HUGE, "--out", "out")
    assert done.code == 2
    assert done.err.startswith("efficient-attn: run: expected memory: ")
    assert done.err.endswith("or give --memory-limit SIZE, at which a case is stopped\n")
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
