"""Descendants of a process, from Linux's /proc. Used by tests and trials that kill processes."""

from __future__ import annotations

import time
from pathlib import Path


def list_descendants(pid: int) -> set[int]:
    """The processes that a process started, and their descendants."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(_fields(stat)[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    pids = {pid}
    while more := {child for child, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids - {pid}


def wait_until_gone(pids: set[int], within: float = 10.0) -> set[int]:
    """The processes that still run after so many seconds. Zombies do not count."""
    deadline = time.monotonic() + within
    while (running := {pid for pid in pids if _is_running(pid)}) and time.monotonic() < deadline:
        time.sleep(0.02)
    return running


def _is_running(pid: int) -> bool:
    try:
        return _fields(Path(f"/proc/{pid}/stat"))[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _fields(stat: Path) -> list[str]:
    """The fields after the name, which may contain anything: the state, the parent."""
    return stat.read_text().rpartition(")")[2].split()
