"""The memory of this process: the C library's allocator in workers, and resident memory as Linux counts it.

Workers keep freed memory, so that calls do not pay for new pages each time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .environment.readings import read_table, value_or_none

# glibc's numbers for mallopt, and their values: no mmap, and nothing returned to the system
MALLOPT_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}
DEFAULT_OPTIONS = {"M_MMAP_MAX": (-4, 65536), "M_TRIM_THRESHOLD": (-1, 2**17), "M_MMAP_THRESHOLD": (-3, 2**17)}
MALLOC_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
MAX_SHIFT_BYTES, CACHE_LINE_BYTES = 2**22, 64
ALLOCATOR_VARIABLES = ("LD_PRELOAD", "GLIBC_TUNABLES", *MALLOC_VARIABLES)

_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_TOLERANCE = 2**20  # bytes by which the size may change while it is read
_RESET_PEAK = "5"  # written to clear_refs, it sets VmHWM to the present size


def describe_settings() -> dict[str, int | str]:
    """The options that `retain_freed_pages` sets in this environment, or why it sets none, for ``run.json``."""
    if set_variables := [name for name in ALLOCATOR_VARIABLES if name in os.environ]:
        return {"left alone": f"{', '.join(set_variables)} set"}
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"):
        return {"left alone": "not glibc"}
    return {name: value for name, (_, value) in MALLOPT_OPTIONS.items()}


def retain_freed_pages() -> None:
    """Have glibc keep freed memory, unless the environment configures allocators itself.

    Otherwise tensors over 32 MiB, and often smaller ones, get new pages in every call. In linear attention at a length
    of 32768, that causes 16,000 page faults, a third of the time, and most of the noise.
    """
    _set_options(MALLOPT_OPTIONS)


def _set_options(options: Mapping[str, tuple[int, int]]) -> None:
    if "left alone" not in describe_settings():
        for option, value in options.values():
            ctypes.CDLL(None).mallopt(option, value)


def shift_heap(seed: int) -> None:
    """Move the end of the heap by a random distance, so that later blocks have other addresses in each worker.

    Workers of one fork server inherit its heap. By the addresses of their tensors alone, all were up to 3% faster or
    slower than those of another server, which no number of process runs averages out.
    """
    if "left alone" not in describe_settings():
        move_end = ctypes.CDLL(None).sbrk
        move_end.argtypes, move_end.restype = [ctypes.c_ssize_t], ctypes.c_void_p
        move_end(CACHE_LINE_BYTES * random.Random(seed).randrange(MAX_SHIFT_BYTES // CACHE_LINE_BYTES))


# -- resident memory, whatever allocated it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ResidentGrowth:
    """Bytes by which resident memory grew during a call: at its peak, and when it had returned, with its result."""

    peak: int
    held: int


def measure_resident_growth(call: Callable[[], Any]) -> ResidentGrowth:
    """The growth of resident memory during a call. Raises `OSError` where the system cannot measure it.

    Only a process that has not made a larger call before shows all of it, because freed memory is reused.
    """
    use_new_pages()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    before = read_status("VmRSS")
    if read_status("VmHWM") > before + _RESET_TOLERANCE:
        raise OSError(f"{_CLEAR_REFS} does not reset VmHWM here")
    result = call()
    peak = read_status("VmHWM")
    use_new_pages()
    held = read_status("VmRSS")
    del result
    return ResidentGrowth(max(0, peak - before), max(0, held - before))


def use_new_pages() -> None:
    """Collect garbage, undo `retain_freed_pages`, and return what is free: from now on, large blocks are new pages,
    which are returned when they are freed."""
    gc.collect()
    _set_options(DEFAULT_OPTIONS)
    return_freed_pages()


def return_freed_pages(*, above: int = 0) -> None:
    """Have glibc return what is free, if the process has more than ``above`` bytes of resident memory.

    Blocks of different sizes leave holes between them, so that a process that keeps freed memory can grow to several
    times what it uses. The next call pays for new pages.
    """
    if "left alone" not in describe_settings() and read_status("VmRSS") > above:
        ctypes.CDLL(None).malloc_trim(0)


def read_status(name: str) -> int:
    """A size in bytes from the process's status. Raises `OSError` if the system does not report it."""
    rows = value_or_none(read_table(_STATUS, ":")) or {}
    if name not in rows:
        raise OSError(f"{_STATUS} has no {name} here")
    return int(rows[name].removesuffix("kB")) * 1024
