"""One writer for each folder: a lock of the operating system, which is released when its process ends."""

import datetime as dt
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import UsageError
from . import durable

LOCK_FILE = "lock"
HOLDER_FILE = "lock.json"  # the owner, in a separate file, because on Windows a locked file cannot be read


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder exclusively. The lock's files may remain, and have no effect.

    Raises `UsageError` naming the holder when the folder is in use, `OSError` when it cannot be locked.
    """
    # no soft lock, which is the existence of a file, and so outlives its process
    lock = FileLock(folder / LOCK_FILE, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        message = f"in use by {_read_holder(folder)}; wait for it, or choose another --out"
        raise UsageError(f"{folder}: {message}") from error
    try:
        since = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        holder = {"pid": os.getpid(), "host": platform.node(), "since": since}
        with open(folder / HOLDER_FILE, "w", encoding="utf-8", opener=durable.open_nofollow) as file:
            file.write(json.dumps(holder) + "\n")
        yield
    finally:
        lock.release()


def _read_holder(folder: Path) -> str:
    """The owner of the lock from its file, which it may not have written yet."""
    try:
        holder = json.loads((folder / HOLDER_FILE).read_text(encoding="utf-8"))
        return f"process {holder['pid']} on host {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
