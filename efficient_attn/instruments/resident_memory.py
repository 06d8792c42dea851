"""The resident memory of this process, as Linux counts it, whatever allocated it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .allocator import return_freed_pages
from .environment.readings import read_table, value_or_none

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_TOLERANCE = 2**20  # bytes by which the size may change while it is read
_RESET_PEAK = "5"  # written to clear_refs, it sets VmHWM to the present size


@dataclass(frozen=True)
class ResidentGrowth:
    """Bytes by which resident memory grew during a call: at its peak, and when it had returned, with its result."""

    peak: int
    held: int


def measure_resident_growth(call: Callable[[], Any]) -> ResidentGrowth:
    """The growth of resident memory during a call. Raises `OSError` where the system cannot measure it.

    Only a process that has not made a larger call before shows all of it, because freed memory is reused.
    """
    gc.collect()
    return_freed_pages()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    before = read_status("VmRSS")
    if read_status("VmHWM") > before + _RESET_TOLERANCE:
        raise OSError(f"{_CLEAR_REFS} does not reset VmHWM here")
    result = call()
    peak = read_status("VmHWM")
    gc.collect()
    return_freed_pages()
    held = read_status("VmRSS")
    del result
    return ResidentGrowth(max(0, peak - before), max(0, held - before))


def read_status(name: str) -> int:
    """A size in bytes from the process's status. Raises `OSError` if the system does not report it."""
    rows = value_or_none(read_table(_STATUS, ":")) or {}
    if name not in rows:
        raise OSError(f"{_STATUS} has no {name} here")
    return int(rows[name].removesuffix("kB")) * 1024
