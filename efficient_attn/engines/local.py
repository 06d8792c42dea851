"""Workers: a fresh process for every piece of measuring, held to its limits, and gone when its parent goes."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, Protocol

from ..instruments.allocator import keep_pages
from ..registry import load_plugin, plugins
from ..results.rows import Status

Method = Literal["forkserver", "spawn", "inline"]
METHODS: tuple[Method, ...] = ("forkserver", "spawn", "inline")
# torch and all that measures, imported once and run never; the profiler imports torch._dynamo when it is first used
PRELOAD = ("efficient_attn.bench.jobs", "torch._dynamo")
START_S = 300.0  # for a worker to come up, plug-ins included
PDEATHSIG = 1  # prctl's name for "send me this signal when my parent dies"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a case may take: seconds in all, and bytes beyond an idle worker's. None: the suite's, the machine's."""

    timeout_s: float | None = None
    memory_bytes: int | None = None


class Board:
    """Where a worker says what it is at, in memory that its parent sees even when the worker hangs."""

    def __init__(self, cells: MutableSequence[float]) -> None:
        self._cells = cells

    def at(self, case: int, stage: int, seconds: float | None = None) -> None:
        """Say which case is at which stage, and for how long at most."""
        self._cells[:] = [case, stage, 0 if seconds is None else time.monotonic() + seconds]

    @property
    def case(self) -> int:
        return int(self._cells[0])

    @property
    def stage(self) -> int:
        return int(self._cells[1])

    @property
    def left(self) -> float | None:
        """Seconds until the worker is overdue; None without a limit."""
        return self._cells[2] - time.monotonic() if self._cells[2] else None


class Job(Protocol):
    """Work for a worker: it tells results as it gets them. Must be picklable, and so must what it tells."""

    def run(self, board: Board, tell: Callable[[Any], None]) -> None: ...


class Died(Exception):
    """A worker ended before its work did: at which case and stage, and how."""

    def __init__(self, case: int, stage: int, status: Status, how: str) -> None:
        super().__init__(how)
        self.case, self.stage, self.how = case, stage, how
        self.status: Status = status


@dataclass
class Account:
    """What a session's workers cost: their number, seconds until they ran, seconds that they worked."""

    starts: int = 0
    starting_s: float = 0.0
    working_s: float = 0.0


@dataclass(frozen=True)
class _Up:
    """A worker's first word."""


@dataclass(frozen=True)
class _Done:
    """A worker's last word: the seconds that it worked, and what went wrong with the job itself."""

    seconds: float
    error: str | None = None


def default_method() -> Method:
    """forkserver where the system has it: a start then costs some ten milliseconds instead of torch's import."""
    return "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"


def start_server(method: Method | None = None) -> None:
    """Let the fork server begin to import, if it is not there yet. Returns at once."""
    if (method or default_method()) == "forkserver":
        from multiprocessing.forkserver import ensure_running

        mp.get_context("forkserver").set_forkserver_preload(list(PRELOAD))
        ensure_running()


def carry_out(job: Job, *, method: Method | None = None, account: Account | None = None) -> Iterator[Any]:
    """Run a job in a worker of its own and yield what it tells. Raises `Died` when the worker does not come back.

    ``inline`` runs it here, for debuggers: then nothing is limited and nothing survives a crash.
    """
    account = account or Account()
    if method == "inline":
        told: list[Any] = []
        start = time.perf_counter()
        job.run(Board([0.0, 0.0, 0.0]), told.append)
        account.working_s += time.perf_counter() - start
        yield from told
        return
    method = method or default_method()
    start_server(method)
    with tempfile.TemporaryDirectory(prefix="efficient-attn-") as folder:
        yield from _in_process(job, mp.get_context(method), Path(folder) / "trace", account)


def _in_process(job: Job, context: Any, trace: Path, account: Account) -> Iterator[Any]:
    ours, theirs = context.Pipe(duplex=False)
    cells = context.RawArray("d", [-1, 0, time.monotonic() + START_S])  # no case yet
    board, killed_before, start = Board(cells), _oom_kills(), time.perf_counter()
    process = context.Process(target=_work, args=(job, theirs, cells, plugins(), str(trace)), daemon=True)
    process.start()
    theirs.close()
    account.starts += 1
    try:
        while True:
            try:
                message = _receive(ours, board)
            except EOFError:
                process.join(10)
                status, how = _how_it_ended(process.exitcode, killed_before)
                raise Died(board.case, board.stage, status, how + _where(trace)) from None
            if isinstance(message, _Up):
                account.starting_s += time.perf_counter() - start
            elif isinstance(message, _Done):
                account.working_s += message.seconds
                if message.error:
                    raise Died(board.case, board.stage, "error", message.error)
                return
            elif message is None:
                case, stage = board.case, board.stage  # before the signal, which may well wake it up
                _ask_where(process)
                raise Died(case, stage, "timeout", "stopped" + _where(trace))
            else:
                yield message
    finally:
        ours.close()
        process.kill()  # has no effect on one that is gone
        process.join(10)
        process.close()


def _receive(connection: Connection, board: Board) -> Any:
    """The next message; None when the worker is overdue."""
    while True:
        left = board.left
        if connection.poll(0.5 if left is None else min(max(left, 0.0), 0.5)):
            return connection.recv()
        if (left := board.left) is not None and left <= 0:
            return None


# -- how a worker ended --------------------------------------------------------------------------------------------


def _how_it_ended(code: int | None, killed_before: int) -> tuple[Status, str]:
    if code is None or code >= 0:
        return "crashed", f"the process ended by itself with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if name == "SIGKILL" and _oom_kills() > killed_before:
        return "oom", "killed by the system, which had run out of memory"
    if name in ("SIGTERM", "SIGINT", "SIGHUP"):
        return "interrupted", f"the process was told to stop from outside ({name})"
    return "crashed", f"killed by {name}"


def _oom_kills() -> int:
    """How many processes the system has killed for want of memory, where it counts them."""
    path = Path("/proc/vmstat")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _ask_where(process: Any) -> None:
    """Have a worker that hangs write down where; faulthandler does, even from within C code."""
    if hasattr(signal, "SIGUSR1") and process.pid:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.2)


def _where(trace: Path) -> str:
    """The innermost line of Python of a trace that belongs neither to Python itself nor to torch."""
    lines = trace.read_text(errors="replace").splitlines() if trace.is_file() else []
    frames = [line.strip() for line in lines if line.startswith("  File ")]
    own = [f for f in frames if "site-packages" not in f and f"{os.sep}lib{os.sep}python3" not in f]
    if not (own or frames):
        return ""
    file, _, rest = (own or frames)[0].removeprefix('File "').partition('", line ')
    number, _, function = rest.partition(" in ")
    return f", in {function} ({Path(file).name}:{number})"


# -- in the worker -------------------------------------------------------------------------------------------------


def _work(job: Job, connection: Connection, cells: Any, to_load: tuple[str, ...], trace: str) -> None:
    _settle(trace)
    connection.send(_Up())
    start = time.perf_counter()
    error = None
    try:
        for plugin in to_load:
            load_plugin(plugin)
        job.run(Board(cells), connection.send)
    except Exception as problem:  # of the job itself: what a case raises is the case's result, and told as such
        error = f"{type(problem).__name__}: {' '.join(str(problem).split())}"[:500]
    connection.send(_Done(time.perf_counter() - start, error))


def _settle(trace: str) -> None:
    """Tie the worker's life to its parent's, leave Ctrl-C to the parent, and have crashes say where they happened."""
    keep_pages()
    gc.freeze()  # collections then need not look through all of torch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
        _end_with_parent()
        with suppress(OSError):  # not allowed everywhere; then the system chooses by itself whom to kill
            Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    os.dup2(2, 1)  # what mechanisms print must not get between the results
    where = open(trace, "w")  # noqa: SIM115  (faulthandler keeps it for the life of the process)
    faulthandler.enable(where, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, where, all_threads=False)


def _end_with_parent() -> None:
    """Have the kernel send a signal that ends this process when the pipe from the parent closes.

    A fork server outlives the parent for as long as its workers live, and a thread that waits for the pipe does not run
    while C code keeps the interpreter's lock: neither would end a worker that hangs there.
    """
    import fcntl

    if (parent := mp.parent_process()) is not None:
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def _leave_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def limit_memory(allowed: int | None) -> None:
    """Let allocations beyond so many bytes fail from here on. Only Linux holds a process to that."""
    if allowed is None or sys.platform != "linux":
        return
    import resource

    status = Path("/proc/self/status").read_text()
    now = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + allowed, resource.RLIM_INFINITY))
