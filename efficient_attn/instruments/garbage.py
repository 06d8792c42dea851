"""Disable garbage collection during a measurement."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_disabled() -> Iterator[None]:
    """Collect garbage now, and disable collection in this context, because it takes time and frees earlier objects."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
