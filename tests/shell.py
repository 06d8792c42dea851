"""The real command in its own process."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

QUICK = ("quickstart", "--quick", "--seq-len", "64,128", "--variant", "full,linear")
COMMAND = (sys.executable, "-m", "efficient_attn")


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


def run(*arguments: str | Path, cwd: Path, **variables: str) -> Done:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_watched(*arguments: str | Path, cwd: Path, **variables: str) -> Done:
    """The same with a terminal on stderr; what appears on it comes back as ``err``."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment(TERM="xterm", **variables),
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
    )
    os.close(terminal)
    seen = b""
    try:
        while piece := os.read(screen, 4096):
            seen += piece
    except OSError:  # Linux's way to say that the other end is closed
        pass
    os.close(screen)
    out, _ = process.communicate(timeout=60)
    return Done(process.returncode, out, seen.decode())


def descendants(pid: int) -> set[int]:
    """The processes that a process started, and those that these did. Linux only."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def all_gone(pids: set[int], within: float = 10.0) -> bool:
    """Whether none of the processes runs any more after so many seconds; one that only waits to be reaped is gone."""
    deadline = time.monotonic() + within
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


TINY = """
title    = "Tiny"
measure  = ["forward"]
baseline = "full"
rounds   = 2
max_rounds=2
axes     = { seq_len = [8, 16], threads = [1] }
dims     = { heads = 2, head_dim = 8 }
variant  = [{ name = "full" }, { name = "linear" }]
"""


@dataclass(frozen=True)
class Finished:
    """A run that is over: never change what is in its folder."""

    folder: Path
    done: Done


WRONG = """
import efficient_attn as ea

@ea.register("zz_wrong", family="full")
class Wrong(ea.SoftmaxAttention):
    "Exact attention, a little off."

    def compute(self, q, k, v, mask, **inputs):
        return super().compute(q, k, v, mask, **inputs) * 1.01
"""
