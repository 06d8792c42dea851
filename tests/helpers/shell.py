"""The real command in its own process, and tiny suites and plug-ins for it."""

from __future__ import annotations

import atexit
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

QUICK = ("quickstart", "--quick", "--seq-len", "64,128", "--variant", "full,linear")
LATER = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")  # variables that a running interpreter can still follow
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


def run_fresh(*arguments: str | Path, cwd: Path, **variables: str) -> Done:
    """The command in a fresh interpreter, imports and all."""
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


def loaded(*arguments: str, cwd: Path) -> set[str]:
    """The modules that the command imports, which ends well, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout
    told = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "efficient_attn.cli" in told
    return set(told)


@cache
def _warm() -> subprocess.Popen[str]:
    """The process that forks for commands, one for a session; it ends when its stdin does."""
    command = (sys.executable, Path(__file__).with_name("warm.py"))
    quiet = environment(KINETO_LOG_LEVEL="99", TORCH_CPP_LOG_LEVEL="ERROR")  # as commands set it before torch is loaded
    process = subprocess.Popen(command, env=quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # closes its stdin and waits for its end
    return process


def run(*arguments: str | Path, cwd: Path, **variables: str) -> Done:
    """The command, or a file of Python, in a process of its own: spared the imports unless a variable speaks to the
    interpreter's start."""
    if any(name.startswith("PYTHON") and name not in LATER for name in variables):
        return run_fresh(*arguments, cwd=cwd, **variables)
    with NamedTemporaryFile("r") as out, NamedTemporaryFile("r") as err:
        pid = start(*arguments, cwd=cwd, out=out.name, err=err.name, **variables)
        return Done(wait(pid), out.read(), err.read())


def start(*arguments: str | Path, cwd: Path, out: str = os.devnull, err: str = os.devnull, **variables: str) -> int:
    """Begin a command like `run`, its streams in these files; its process's number, to `wait` for."""
    request = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "environment": environment(**variables)}
    return _ask(request | {"out": out, "err": err})


def wait(pid: int) -> int:
    """The exit code of a process that `start` began, once it has ended."""
    return _ask(pid)


def _ask(request: object) -> int:
    warm = _warm()
    assert warm.stdin is not None
    assert warm.stdout is not None
    print(json.dumps(request), file=warm.stdin, flush=True)
    return int(warm.stdout.readline())


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


# exact attention that stops at one length for as long as the file "hold" exists, and says that it is there
WAITS = """
import time
from pathlib import Path
import efficient_attn as ea

@ea.register("zz_waits", family="full")
class Waits(ea.SoftmaxAttention):
    "Exact attention that waits."

    def compute(self, q, k, v, mask, **inputs):
        while q.shape[2] == 16 and Path("hold").exists():
            Path("reached").touch()
            time.sleep(0.01)
        return super().compute(q, k, v, mask, **inputs)
"""

WRONG = """
import efficient_attn as ea

@ea.register("zz_wrong", family="full")
class Wrong(ea.SoftmaxAttention):
    "Exact attention, a little off."

    def compute(self, q, k, v, mask, **inputs):
        return super().compute(q, k, v, mask, **inputs) * 1.01
"""
