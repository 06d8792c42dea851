"""A run that is told to stop: its code and its word; taking it up again; what it is allowed to take."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from shell import COMMAND, TINY, WRONG, Command, environment

import efficient_attn as ea

WAITS = """
import time
from pathlib import Path
import efficient_attn as ea

@ea.register("zz_waits", family="full")
class Waits(ea.SoftmaxAttention):
    "Exact attention that waits for as long as the file is there."

    def compute(self, q, k, v, mask, **inputs):
        while q.shape[2] == 16 and Path("hold").exists():
            Path("reached").touch()
            time.sleep(0.01)
        return super().compute(q, k, v, mask, **inputs)
"""
OPTIONS = ("run", "tiny.toml", "--plugin", "mine.py", "--variant", "zz_waits", "--out", "out")


@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_each_signal_has_its_code_and_its_word(
    sent: signal.Signals, code: int, word: str, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "mine.py").write_text(WAITS)
    (tmp_path / "hold").touch()
    process = subprocess.Popen(
        [*COMMAND, *OPTIONS],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "reached").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.splitlines()[-1] == (f"efficient-attn: {word}; the rows so far are kept; go on with --resume --out out")
    (tmp_path / "hold").unlink()
    assert command(*OPTIONS, "--resume").code == 0
    assert list(ea.load(tmp_path / "out").status) == ["ok", "ok"]


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
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "mine.py").write_text(WRONG.replace("* 1.01", "+ q.new_zeros(2**30)[:1]"))  # 4 GiB
    options = ("--plugin", "mine.py", "--variant", "full,zz_wrong", "--seq-len", "8", "--start-method", "spawn")
    done = command("run", "tiny.toml", *options, "--memory-limit", "1GiB", "--out", "out")
    assert done.code == 1, done.err
    assert dict(ea.load(tmp_path / "out").groupby("variant").status.last()) == {"full": "ok", "zz_wrong": "oom"}
