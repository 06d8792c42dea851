"""Files that survive a crash: what these functions wrote is on the disk, whole, when they return."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
_ANEW = os.O_WRONLY | os.O_TRUNC | os.O_CREAT | getattr(os, "O_BINARY", 0)


def open_to_append(path: Path) -> int:
    """A file that takes data at its end only, created where there was none."""
    file = os.open(path, _APPEND, 0o644)
    sync_folder(path.parent)
    return file


def append(file: int, data: bytes) -> None:
    """Add the data and sync. On an error none of it stays, so that a file of lines remains one."""
    before = os.fstat(file).st_size
    try:
        _write(file, data)
    except OSError:
        os.ftruncate(file, before)
        raise


def replace(path: Path, data: bytes) -> None:
    """Put the data in the file's place: whoever reads meets the old or the new, never a part."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        _create(temporary, data)
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk it would take the last room
        raise
    sync_folder(path.parent)


def truncate(path: Path, size: int) -> None:
    """Leave the first ``size`` bytes."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(file, size)
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(folder: Path) -> None:
    """The folder and those above it, each entered in its parent for good."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last: a new file's own fsync does not promise that its name is there."""
    if os.name == "nt":  # folders cannot be opened there
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what some network file systems answer, which know no such request
            raise
    finally:
        os.close(file)


def _create(path: Path, data: bytes) -> None:
    file = os.open(path, _ANEW, 0o644)
    try:
        _write(file, data)
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:  # a system may take less than it was given
        left = left[os.write(file, left) :]
    os.fsync(file)
