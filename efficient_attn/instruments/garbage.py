"""Garbage collection, and doing without it for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_disabled() -> Iterator[None]:
    """Collect garbage now, and disable collection until the end: it takes time, and frees what others left behind."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
