"""Stop at Ctrl-C and SIGTERM with one line and an exit code, so that what is measured can be continued."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED, TERMINATED = 130, 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, which schedulers and containers send before they kill a process."""


@contextmanager
def interruptible_by_sigterm() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM in this context, in the main thread only."""
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
    """Print that the command was stopped, and how to continue; returns the exit code."""
    cause, code = ("terminated", TERMINATED) if isinstance(stop, Terminated) else ("interrupted", INTERRUPTED)
    print(f"efficient-attn: {cause}{'; ' if remedy else ''}{remedy}", file=sys.stderr)
    return code
