"""Processes that a worker's cases start: found, and ended with the case or the worker.

On Linux a worker is a child subreaper with a session of its own: what its cases start stays below it, or in its session
if the worker crashed. Only a process with its own session whose worker crashed escapes. Elsewhere the process group is
ended with the worker.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
# processes that torch and multiprocessing keep for later; they end with the worker
EXEMPT = ("compile_worker", "multiprocessing.resource_tracker", "multiprocessing.forkserver")
PASSES = 5  # a process may start another one while it is being ended

_worker: list[int] = []  # the id of this process, if it is a worker


class _Process(NamedTuple):
    name: str
    state: str
    parent: int
    session: int


def become_worker() -> None:
    """Give this process a session of its own, and make it the parent of its descendants whose parents end."""
    _worker[:] = [os.getpid()]
    with suppress(OSError, AttributeError):  # a group's leader already, or no such call
        os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_leftovers() -> list[str]:
    """End what the worker's cases have left running; returns names. Nothing in a process that is no worker. A forked
    copy of the worker ends here."""
    if not _worker:
        return []
    end_forked_copy(_worker[0])
    return end_descendants(_worker[0], exempt=EXEMPT)


def end_forked_copy(pid: int) -> None:
    """End this process if it is a copy of the worker with this id, forked by a mechanism: it would send results too."""
    if os.getpid() != pid:
        os._exit(0)


def end_descendants(pid: int, *, exempt: tuple[str, ...] = ()) -> list[str]:
    """End the descendants of a process, and the others of its session; returns their names.

    exempt: parts of the command lines of those that stay, with their own descendants.
    """
    if sys.platform != "linux":
        if not exempt:
            with suppress(OSError, AttributeError):
                os.killpg(pid, signal.SIGKILL)
        return []
    names: dict[int, str] = {}
    for _ in range(PASSES):
        running = _list_running(pid, exempt)
        if not running:
            break
        names |= running
        for descendant in running:
            with suppress(OSError):
                os.kill(descendant, signal.SIGKILL)
        for descendant in running:
            with suppress(OSError):  # of other parents, it is theirs to wait for
                os.waitpid(descendant, 0)
    return list(names.values())


def _list_running(root: int, exempt: tuple[str, ...]) -> dict[int, str]:
    """The names of running processes below this one or in its session, by id."""
    processes = _read_processes()
    children = defaultdict[int, list[int]](list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    running: dict[int, str] = {}
    waiting = [*children[root], *(pid for pid, process in processes.items() if process.session == root)]
    visited = {root}
    while waiting:
        pid = waiting.pop()
        if pid in visited:
            continue
        visited.add(pid)
        if exempt and any(text in _read_command(pid) for text in exempt):
            continue
        if processes[pid].state not in "ZX":
            running[pid] = processes[pid].name
        waiting += children[pid]
    return running


def _read_processes() -> dict[int, _Process]:
    processes = {}
    for folder in os.scandir("/proc"):
        if folder.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                text = Path(folder.path, "stat").read_text(errors="replace")
                name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
                processes[int(folder.name)] = _Process(name, rest[0], int(rest[1]), int(rest[3]))
    return processes


def _read_command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
