"""What a case is allowed to take; trying again what took too much."""

from __future__ import annotations

from pathlib import Path

from shell import TINY, WAITS, Command

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
