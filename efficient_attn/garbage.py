"""Disable garbage collection during a measurement, or while many objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_disabled(*, collect_first: bool = True) -> Iterator[None]:
    """Disable collection in this context, because it takes time and frees earlier objects, which are collected now."""
    was_enabled = gc.isenabled()
    if collect_first:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
