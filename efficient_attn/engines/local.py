"""The local engine: a new process for every job, with limits, which ends when its parent ends."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..instruments.environment.readings import read_table, value_or_none
from ..instruments.search_path import PACKAGE, make_search_path, read_search_path, set_variables
from ..registry import plugins
from ..results.rows import Status
from .descendants import end_descendants
from .job import ForeignBytes, Job, ResultPipe, StageBoard, WorkerDied
from .worker import WorkerFinished, WorkerReady, WorkerSetup, run_worker

Method = Literal["forkserver", "spawn", "inline"]
PRELOAD = (run_worker.__module__, "torch._dynamo")  # the profiler imports torch._dynamo when it is first used
ENDING_S = 2.0  # in which a worker ends after its job
TRACE_S = 3.0  # in which a worker that hangs begins to write its stack, if other programs leave it a processor
START_S = 300.0  # time limit for a worker to start and report its first case, plug-ins included


def choose_method() -> Method:
    """forkserver where it is available, because a worker then starts in about 10 ms, without importing torch."""
    return "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"


@dataclass
class LocalEngine:
    """Workers on this machine, a process for each job.

    method: how they start; ``inline`` runs jobs in this process for debugging, without limits or crash safety. preload:
    modules that the fork server imports once, in addition to torch. The server never runs a tensor operation. starts,
    starting_s, working_s: the number of workers so far, seconds until they started, and seconds that they worked.
    """

    method: Method = field(default_factory=choose_method)
    preload: tuple[str, ...] = ()
    starts: int = 0
    starting_s: float = 0.0
    working_s: float = 0.0

    def start(self) -> None:
        """Start the fork server if it is not running. Returns immediately."""
        if self.method == "forkserver":
            from multiprocessing import forkserver

            mp.get_context("forkserver").set_forkserver_preload([*PRELOAD, *self.preload])
            variables = read_search_path()
            set_variables(make_search_path())
            try:
                with _block_interrupts():
                    forkserver.ensure_running()
            finally:
                set_variables(variables)

    def run(self, job: Job) -> Iterator[Any]:
        """Run a job in its own worker and yield its results. Raises `WorkerDied` if the worker ends early."""
        return self._run(job, wait=True)

    def poll(self, job: Job) -> Iterator[Any]:
        """As `run`, but yield None instead of waiting whenever no result has come, so that a caller can have several
        workers. Closing the iterator ends its worker."""
        return self._run(job, wait=False)

    def _run(self, job: Job, *, wait: bool) -> Iterator[Any]:
        if self.method == "inline":
            messages: list[Any] = []
            start = time.perf_counter()
            job.run(StageBoard([0.0, 0.0, 0.0]), messages.append)
            self.working_s += time.perf_counter() - start
            yield from messages
            return
        self.start()
        with tempfile.TemporaryDirectory(prefix="efficient-attn-") as folder:
            yield from self._run_in_process(job, mp.get_context(self.method), Path(folder) / "trace", wait=wait)

    def _run_in_process(self, job: Job, context: Any, trace: Path, *, wait: bool) -> Iterator[Any]:
        from ..instruments import integrity  # imports torch, as the fork server does at the same time

        receiver, sender = context.Pipe(duplex=False)
        fields = context.RawArray("d", [-1, 0, time.monotonic() + START_S])  # no case yet
        board, killed_before, start = StageBoard(fields), _count_oom_kills(), time.perf_counter()
        token = os.urandom(16)
        results = ResultPipe(receiver, token)
        setup = WorkerSetup(PACKAGE, read_search_path(), str(trace), self.preload, plugins(), integrity.blamed)
        arguments = job, ResultPipe(sender, token), fields, setup
        process = context.Process(target=run_worker, args=arguments, daemon=True)
        with _block_interrupts() if self.method == "spawn" else nullcontext():
            process.start()
        sender.close()
        self.starts += 1
        try:
            while True:
                try:
                    message = yield from _receive(results, board, process.pid, wait=wait)
                except ForeignBytes as error:
                    raise WorkerDied(*board.position, "crashed", str(error)) from None
                except EOFError:
                    process.join(10)
                    status, reason = _explain_exit(process.exitcode, killed_before)
                    raise WorkerDied(*board.position, status, reason + _read_location(trace)) from None
                if isinstance(message, WorkerReady):
                    self.starting_s += time.perf_counter() - start
                elif isinstance(message, WorkerFinished):
                    self.working_s += message.seconds
                    process.join(ENDING_S)  # killed before, it leaves semaphores, of which Python warns at the end
                    if message.error:
                        raise WorkerDied(*board.position, message.status, message.error)
                    return
                elif message is None:
                    position = board.position  # read before the signal, which may wake the worker up
                    _request_trace(process, trace)
                    raise WorkerDied(*position, "timeout", "stopped" + _read_location(trace))
                else:
                    yield message
        finally:
            receiver.close()
            ended_itself = process.exitcode == 0  # and what its cases had left
            if process.pid and not ended_itself:
                end_descendants(process.pid)
            process.kill()  # no effect if it has ended
            process.join(10)
            if process.pid and not ended_itself:
                end_descendants(process.pid)  # what it started meanwhile, in its session
            with suppress(ValueError):  # it is still ending, as with very many processes on the machine
                process.close()


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Processes that start meanwhile never see Ctrl-C, which the parent handles. Until they ignore it themselves, they
    would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # unblocks signals when it starts, which would be before the process does
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(pipe: ResultPipe, board: StageBoard, pid: int | None, *, wait: bool) -> Generator[None, None, Any]:
    """Return the next message; None if the worker exceeds its deadline. Time in which it waits for a processor that
    other programs use is added to its limit. Without ``wait``, yield until a message has come."""
    position, waited_s = board.position, _read_waiting_s(pid)
    while (message := pipe.receive((0.5 if board.left > 0.5 else max(board.left, 0.01)) if wait else 0)) is None:
        if board.position != position:
            position, waited_s = board.position, _read_waiting_s(pid)
        if board.left <= 0 and board.left + _read_waiting_s(pid) - waited_s <= 0:
            return None
        if not wait:
            yield
    return message


def _read_waiting_s(pid: int | None) -> float:
    """Seconds in which a process was ready to run, but had to wait for a processor; 0 where it is not counted."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


# -- how a worker ended --------------------------------------------------------------------------------------------


def _explain_exit(code: int | None, killed_before: int) -> tuple[Status, str]:
    if code is None or code >= 0:
        return "crashed", f"the process exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if name == "SIGKILL" and _count_oom_kills() > killed_before:
        return "oom", "killed by the system, which had run out of memory"
    if name in ("SIGTERM", "SIGINT", "SIGHUP"):
        return "interrupted", f"the process was stopped from outside ({name})"
    return "crashed", f"killed by {name}"


def _count_oom_kills() -> int:
    """The number of processes that the kernel has killed for lack of memory; 0 where it is not counted."""
    counters = value_or_none(read_table(Path("/proc/vmstat"))) or {}
    return int(counters.get("oom_kill", 0))


def _request_trace(process: Any, trace: Path) -> None:
    """Have faulthandler write the stack of a worker that hangs, which works in C code too, and wait for it."""
    if not hasattr(signal, "SIGUSR1") or not process.pid:
        return
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGUSR1)
    deadline = time.monotonic() + TRACE_S
    while time.monotonic() < deadline and not (trace.is_file() and trace.stat().st_size):
        time.sleep(0.02)
    time.sleep(0.1)  # it is written line by line


def _read_location(trace: Path) -> str:
    """The innermost frame of a trace outside of the standard library and installed packages, else the innermost one."""
    lines = trace.read_text(errors="replace").splitlines() if trace.is_file() else []
    frames = [line.strip() for line in lines if line.startswith("  File ")]
    own_frames = [f for f in frames if "site-packages" not in f and f"{os.sep}lib{os.sep}python3" not in f]
    if not frames:
        return ""
    file, _, rest = (own_frames or frames)[0].removeprefix('File "').partition('", line ')
    number, _, function = rest.partition(" in ")
    return f", in {function} ({Path(file).name}:{number})"
