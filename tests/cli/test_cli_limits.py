"""Time limits of cases, and repeating cases that exceeded them."""

from __future__ import annotations

from pathlib import Path

from shell import TINY, WAITS, Command

import efficient_attn as ea

OPTIONS = ("run", "tiny.toml", "--plugin", "mine.py", "--variant", "zz_waits", "--out", "out")


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
