"""Being stopped from outside: Ctrl-C and a polite kill end a run in the same way, with a code of their own each."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED, TERMINATED = 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM: what a scheduler or a container sends before it kills."""


@contextmanager
def interruptible_by_sigterm() -> Iterator[None]:
    """Within it SIGTERM raises `Terminated`; not in other threads than the main one, which alone may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def report_stop(stop: KeyboardInterrupt, remedy: str = "") -> int:
    """Say that it was stopped, and what can be done; returns the exit code."""
    terminated = isinstance(stop, Terminated)
    cause = "terminated" if terminated else "interrupted"
    print(f"efficient-attn: {cause}{'; ' if remedy else ''}{remedy}", file=sys.stderr)
    return TERMINATED if terminated else INTERRUPTED
