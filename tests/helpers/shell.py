"""Run the command in a process of its own, and tiny suites and plug-ins for it."""

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
CHANGEABLE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")  # variables that also take effect in a running interpreter
COMMAND = (sys.executable, "-m", "efficient_attn")


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    return inherited | {"OMP_NUM_THREADS": "1"} | variables


def run_fresh(*arguments: str | Path, cwd: Path, **variables: str) -> Done:
    """The command in a new interpreter."""
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
    """The modules that a successful command imports, in a new interpreter."""
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
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    assert "efficient_attn.cli" in names
    return set(names)


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks for each command, one for a test session; it ends when its stdin is closed."""
    command = (sys.executable, Path(__file__).with_name("command_server.py"))
    quiet = environment(
        KINETO_LOG_LEVEL="99", TORCH_CPP_LOG_LEVEL="ERROR"
    )  # as the command sets them before it imports torch
    process = subprocess.Popen(command, env=quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # closes its stdin and waits for it
    return process


def run(*arguments: str | Path, cwd: Path, **variables: str) -> Done:
    """The command, or a Python file, in a process of its own. It is forked with all modules imported, unless a variable
    needs a new interpreter."""
    if any(name.startswith("PYTHON") and name not in CHANGEABLE for name in variables):
        return run_fresh(*arguments, cwd=cwd, **variables)
    with NamedTemporaryFile("r") as out, NamedTemporaryFile("r") as err:
        pid = start(*arguments, cwd=cwd, out=out.name, err=err.name, **variables)
        return Done(wait(pid), out.read(), err.read())


def start(*arguments: str | Path, cwd: Path, out: str = os.devnull, err: str = os.devnull, **variables: str) -> int:
    """Start a command like `run`, with its output in these files; the process id, for `wait`."""
    request = {"arguments": [*map(str, arguments)], "cwd": str(cwd), "environment": environment(**variables)}
    return _request(request | {"out": out, "err": err})


def wait(pid: int) -> int:
    """Wait for a process of `start`; its exit code."""
    return _request(pid)


def _request(request: object) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(request), file=server.stdin, flush=True)
    return int(server.stdout.readline())


def run_watched(*arguments: str | Path, cwd: Path, **variables: str) -> Done:
    """The same with a terminal as stderr, whose output is returned as ``err``."""
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
    output = b""
    try:
        while piece := os.read(screen, 4096):
            output += piece
    except OSError:  # on Linux: the other end is closed
        pass
    os.close(screen)
    out, _ = process.communicate(timeout=60)
    return Done(process.returncode, out, output.decode())


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
    """A finished run; tests must not change its folder."""

    folder: Path
    done: Done


# exact attention that blocks at one length while the file "hold" exists, and creates the file "reached"
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
    "Exact attention with an error of 1%."

    def compute(self, q, k, v, mask, **inputs):
        return super().compute(q, k, v, mask, **inputs) * 1.01
"""
