"""The C library's allocator in workers: freed memory is kept, so that calls do not pay for new pages each time."""

from __future__ import annotations

import ctypes
import os
import random
import sys

# glibc's numbers for mallopt, and their values: no mmap, and nothing returned to the system
MALLOPT_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}
DEFAULT_OPTIONS = {"M_MMAP_MAX": (-4, 65536), "M_TRIM_THRESHOLD": (-1, 2**17), "M_MMAP_THRESHOLD": (-3, 2**17)}
MALLOC_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
MAX_SHIFT_BYTES, CACHE_LINE_BYTES = 2**22, 64
ALLOCATOR_VARIABLES = ("LD_PRELOAD", "GLIBC_TUNABLES", *MALLOC_VARIABLES)


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
    if "left alone" not in describe_settings():
        library = ctypes.CDLL(None)
        for option, value in MALLOPT_OPTIONS.values():
            library.mallopt(option, value)


def shift_heap(seed: int) -> None:
    """Move the end of the heap by a random distance, so that later blocks have other addresses in each worker.

    Workers of one fork server inherit its heap. By the addresses of their tensors alone, all were up to 3% faster or
    slower than those of another server, which no number of process runs averages out.
    """
    if "left alone" not in describe_settings():
        move_end = ctypes.CDLL(None).sbrk
        move_end.argtypes, move_end.restype = [ctypes.c_ssize_t], ctypes.c_void_p
        move_end(CACHE_LINE_BYTES * random.Random(seed).randrange(MAX_SHIFT_BYTES // CACHE_LINE_BYTES))


def return_freed_pages() -> None:
    """Undo `retain_freed_pages`, and have glibc return what is free: from now on, large blocks are new pages, which
    are returned when they are freed."""
    if "left alone" not in describe_settings():
        library = ctypes.CDLL(None)
        for option, value in DEFAULT_OPTIONS.values():
            library.mallopt(option, value)
        library.malloc_trim(0)
