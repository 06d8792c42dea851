"""One writer a folder: a lock of the operating system's, which ends with its process however that ends."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import sys
from pathlib import Path

from ..errors import UsageError

LOCK = "lock"

if sys.platform == "win32":
    import msvcrt

    _TAKE, _LEAVE, _HELD = msvcrt.LK_NBLCK, msvcrt.LK_UNLCK, PermissionError

    def _lock(file: int, how: int) -> None:
        os.lseek(file, 1 << 30, os.SEEK_SET)  # far behind the text, because what is locked there cannot be read
        msvcrt.locking(file, how, 1)
else:
    import fcntl

    _TAKE, _LEAVE, _HELD = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN, BlockingIOError
    _lock = fcntl.flock


class FolderLock:
    """Held from its making to `release`. The file stays behind; without a lock on it it means nothing."""

    def __init__(self, folder: Path) -> None:
        """Raises `UsageError` naming the holder when the folder is in use, `OSError` when it cannot be locked."""
        self._file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)  # Python's are not inherited by children
        try:
            self._take(folder)
        except BaseException:
            os.close(self._file)
            raise

    def _take(self, folder: Path) -> None:
        try:
            _lock(self._file, _TAKE)
        except _HELD as error:
            told = f"in use by {_holder(self._file)}; wait for it, or choose another --out"
            raise UsageError(f"{folder}: {told}") from error
        since = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        text = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}) + "\n"
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, text.encode())

    def release(self) -> None:
        """Let others in. Closing alone would wait for a child that was just made and still shares the file."""
        try:
            _lock(self._file, _LEAVE)
        finally:
            os.close(self._file)


def _holder(file: int) -> str:
    """Who holds the lock, as far as its text says: the holder may be about to write it."""
    os.lseek(file, 0, os.SEEK_SET)
    try:
        held = json.loads(os.read(file, 4096))
        return f"process {held['pid']} on host {held['host']} since {held['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
