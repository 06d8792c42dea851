"""The worker's side: it ends with its parent, imports what it needs, and limits its memory.

The command line imports this module before torch, so that the fork server imports torch at the same time.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ..errors import UsageError, is_out_of_memory
from ..instruments.allocator import read_status, retain_freed_pages
from ..instruments.search_path import PACKAGE, set_variables
from ..registry import load_plugin
from ..results.rows import Status
from .descendants import become_worker, end_descendants, end_forked_copy
from .job import Job, ResultPipe, StageBoard

PDEATHSIG = 1  # prctl's number for the signal sent when the parent dies


@dataclass(frozen=True)
class WorkerReady:
    """A worker's first message."""


@dataclass(frozen=True)
class WorkerFinished:
    """A worker's last message: the seconds that it worked, and the error of the job itself, with its status."""

    seconds: float
    error: str | None = None
    status: Status = "error"


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs before its job.

    package: the folder of this package, as its parent has imported it. variables: those of the parent that say where
    modules are searched. trace: a file for tracebacks. modules: to import first, their functions are recorded. plugins:
    to import then. blamed: `integrity.blamed` of the parent, which has imported the plug-ins too.
    """

    package: Path
    variables: Mapping[str, str | None]
    trace: str
    modules: Sequence[str]
    plugins: Sequence[str]
    blamed: Mapping[str, str]


def run_worker(job: Job, pipe: ResultPipe, fields: Any, setup: WorkerSetup) -> None:
    """The main function of a worker process: prepare it, and run the job."""
    _prepare_process(setup.trace)
    become_worker()
    pid = os.getpid()

    def send(message: Any) -> None:
        end_forked_copy(pid)
        try:
            pipe.send(message)
        except BrokenPipeError:  # the parent was interrupted
            os._exit(1)

    send(WorkerReady())
    start = time.perf_counter()
    finished = WorkerFinished(0.0)
    try:
        from ..instruments import integrity

        if setup.package != PACKAGE:
            raise UsageError(f"workers import {PACKAGE}, the command {setup.package}: remove one of the copies")
        set_variables(setup.variables)
        for module in setup.modules:
            importlib.import_module(module)
        integrity.record_integrity()
        if reason := integrity.describe_replacement():
            raise UsageError(f"the program's main module cannot be measured: {reason}")
        integrity.blamed.update(setup.blamed)
        for plugin in setup.plugins:
            load_watched_plugin(plugin)
        job.run(StageBoard(fields), send)
    except Exception as exception:  # of the job itself; exceptions of a case are sent as its result
        text = f"{type(exception).__name__}: {' '.join(str(exception).split())}"[:500]
        finished = WorkerFinished(0.0, text, "oom" if is_out_of_memory(exception) else "error")
    finally:
        end_forked_copy(pid)
        end_descendants(pid)
    send(replace(finished, seconds=time.perf_counter() - start))


def load_watched_plugin(plugin: str) -> list[str]:
    """Import a plug-in. If that replaces recorded functions or changes settings, it is undone, and the results of the
    plug-in's mechanisms are invalid. Returns their names. Raises `UsageError` if it has none."""
    from ..instruments import integrity
    from ..instruments.global_state import GlobalState

    before = GlobalState.capture()
    names = load_plugin(plugin)
    if reason := before.describe_change(random=False):
        before.restore()
        if not names:
            raise UsageError(f"--plugin {plugin}: when it was imported, {reason}")
        names_alone = (name.partition(":")[0] for name in names)
        integrity.blamed.update(dict.fromkeys(names_alone, f"when its plug-in was imported, {reason}"))
    return names


def _prepare_process(trace: str) -> None:
    """End with the parent, ignore Ctrl-C, which the parent handles, and write a traceback on crashes."""
    retain_freed_pages()
    gc.freeze()  # so that collections do not scan all of torch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    if sys.platform == "linux":
        _signal_with_parent()
        with suppress(OSError):  # not permitted everywhere; the system then selects which process to kill
            Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    os.dup2(2, 1)  # what mechanisms print must not mix with results
    try:
        trace_file = open(trace, "w")  # noqa: SIM115  (faulthandler uses it until the process ends)
    except FileNotFoundError:  # the parent was interrupted, and has removed the folder
        os._exit(1)
    faulthandler.enable(trace_file, all_threads=False)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, trace_file, all_threads=False)


def _signal_with_parent() -> None:
    """Have the kernel end this process with a signal when the pipe from the parent closes.

    A fork server lives as long as its workers, and a thread waiting for the pipe does not run while C code holds the
    interpreter's lock, so neither would end a worker that hangs there.
    """
    import fcntl

    if (parent := mp.parent_process()) is not None:
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def _exit_with_parent() -> None:
    if (parent := mp.parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)


def limit_forks(pid: int) -> None:
    """From now on, forked copies of the worker with this id end when they fork again, and when the worker ends."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lambda: end_forked_copy(pid), after_in_child=end_with_parent)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """From now on, this process gets a signal when its parent ends. Only on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, number)


def limit_memory(allowed: int | None, device: str = "cpu") -> None:
    """From now on, allocations beyond this number of bytes fail: of a GPU's memory those that torch makes, of the
    processor's all. Only Linux enforces the latter."""
    if allowed is not None and device == "cuda":
        import torch

        if torch.cuda.is_available():
            share = allowed / torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    if allowed is None or device == "cuda" or sys.platform != "linux":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (read_status("VmData") + allowed, resource.RLIM_INFINITY))
