"""What a case is allowed to take, in time and memory; trying again what took too much."""

from __future__ import annotations

from pathlib import Path

from shell import TINY, WAITS, WRONG, Command

import efficient_attn as ea

OPTIONS = ("run", "tiny.toml", "--plugin", "mine.py", "--variant", "zz_waits", "--out", "out")


def test_what_takes_too_long_is_stopped_and_tried_again_when_asked(tmp_path: Path, command: Command) -> None:
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


def test_workers_may_be_spawned_and_are_held_to_their_memory(tmp_path: Path, command: Command) -> None:
    (tmp_path / "tiny.toml").write_text(TINY.replace("rounds ", "processes = 1\nrounds ", 1))
    (tmp_path / "mine.py").write_text(WRONG.replace("* 1.01", "+ q.new_zeros(2**30)[:1]"))  # 4 GiB
    options = ("--plugin", "mine.py", "--variant", "full,zz_wrong", "--seq-len", "8", "--start-method", "spawn")
    done = command("run", "tiny.toml", *options, "--memory-limit", "1GiB", "--out", "out")
    assert done.code == 1, done.err
    assert dict(ea.load(tmp_path / "out").groupby("variant").status.last()) == {"full": "ok", "zz_wrong": "oom"}
