"""A server process that has imported all modules of the command and forks for each request, to make `shell.run` fast.

A request is a line of JSON on stdin (arguments, cwd, environment, files for stdout and stderr); the reply is the id of
the process started. A request that is such an id waits for that process; the reply is its exit code. No tensor
operation runs before a fork, as OpenMP's threads do not survive it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LIMIT_S = 300
SHORT_ROOFLINE = {  # constants of instruments/roofline.py
    "GEMM_S": 0.002,
    "GEMM_REPEATS": 1,
    "MEMORY_REPEATS": 1,
    "CACHE_DIVISORS": (64,),
    "CACHE_REPEATS": 3,
    "BUFFER_BYTES": 2**25,
    "BUFFER_CACHES": 0,
}
TRIALS = str(Path(__file__).parents[2] / "suites" / "trials")
PUBLISHED_RUN = Path(__file__).parents[2] / "results" / "decode_heads64"  # a small one


def fill_caches() -> None:
    """Do once what every run would do again: trace sources, prepare distributions, templates and fonts."""
    from efficient_attn.bench.sources import fingerprint
    from efficient_attn.report.write import write_report
    from efficient_attn.results.stats import t_quantile
    from efficient_attn.variants import CATALOGUE

    for entry in CATALOGUE:
        module, _, name = entry.target.partition(":")
        fingerprint(getattr(importlib.import_module(module), name))
    t_quantile(0.95, 7)
    with TemporaryDirectory() as folder:
        write_report([PUBLISHED_RUN], Path(folder))


def shorten_measurements() -> None:
    """Shorten rounds and the roofline measurement, as no test depends on measured times, and record the new values."""
    from efficient_attn.instruments import integrity, roofline, timing

    for name, value in SHORT_ROOFLINE.items():
        setattr(roofline, name, value)
    timing.MIN_ROUND_S = 0.01
    integrity._recorded.clear()
    integrity.record_integrity()


def set_up(request: dict[str, Any]) -> None:
    """Set up folder, environment and streams as a new interpreter for the request has them."""
    signal.alarm(LIMIT_S)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    for number, path in enumerate((os.devnull, request["out"], request["err"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    sys.path[:1] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv[1:] = request["arguments"]


def fork_fork_servers() -> None:
    """Fork a command's own fork server too, instead of starting an interpreter that imports everything again."""
    spawn = util.spawnv_passfds

    def start(path: Any, arguments: Any, fds: Any) -> int:
        code = os.fsdecode(arguments[-1])
        if "multiprocessing.forkserver" not in code:
            return spawn(path, arguments, fds)
        child = os.fork()
        if not child:
            for fd in set(range(3, 1024)) - set(fds):  # a new program inherits no others
                with suppress(OSError):
                    os.close(fd)
            try:
                exec(code, {})
            finally:
                os._exit(0)
        return child

    util.spawnv_passfds = start


def _read_line() -> bytes:
    """The next line of stdin, which may come in several pieces and is not buffered, as children inherit buffers."""
    line = b""
    while not line.endswith(b"\n") and (piece := os.read(0, 1 << 20)):
        line += piece
    return line


def serve() -> bool:
    """Fork for each request until stdin is closed. Returns True in a child process, which is to run the command."""
    while line := _read_line():
        request = json.loads(line)
        if isinstance(request, int):
            print(os.waitstatus_to_exitcode(os.waitpid(request, 0)[1]), flush=True)
            continue
        child = os.fork()
        if not child:
            set_up(request)
            return True
        print(child, flush=True)
    return False


def run_command() -> int:
    """Run ``python -m efficient_attn`` or ``python FILE`` with exit handlers; the exit code."""
    try:
        if sys.argv[1:2] and sys.argv[1].endswith(".py"):
            del sys.argv[0]
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            runpy.run_module("efficient_attn", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, TRIALS)
    from command_modules import import_modules

    del sys.path[0]  # commands do not find the trials
    import_modules()
    fill_caches()
    gc.freeze()  # a collection in a child would copy all these pages
    shorten_measurements()
    fork_fork_servers()
    if serve():
        os._exit(run_command())  # normal interpreter shutdown takes a third of a second
