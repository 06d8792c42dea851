"""Files that survive a crash: what these functions wrote is on the disk, whole, when they return.

No name that lies ready is written through: a folder may be somebody else's, and a link in it may lead anywhere.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows knows no such thing
_WRITE = os.O_WRONLY | _NOFOLLOW | getattr(os, "O_BINARY", 0)
_APPEND = _WRITE | os.O_APPEND | os.O_CREAT
_CREATE = _WRITE | os.O_CREAT | os.O_EXCL


def open_nofollow(path: str, flags: int) -> int:
    """An opener for `open`: the file of that name, never what a link of that name leads to."""
    return os.open(path, flags | _NOFOLLOW, 0o644)


def open_to_append(path: Path) -> int:
    """A file that takes data at its end only, created where there was none."""
    file = os.open(path, _APPEND, 0o644)
    sync_folder(path.parent)
    return file


def append(file: int, data: bytes) -> None:
    """Add the data and sync. On an error none of it stays, so that a file of lines remains one."""
    size = os.fstat(file).st_size
    try:
        _write(file, data)
    except OSError:
        os.ftruncate(file, size)
        raise


def replace(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put the data in the file's place: whoever reads meets the old or the new, never a part.

    A link gives way to the file; what it led to stays as it was. sync: not for what can be made again.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # a name that nobody can have laid ready
    file = os.open(temporary, _CREATE, 0o644)
    try:
        try:
            _write(file, data, sync=sync)
        finally:
            os.close(file)
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it would take the last room
        raise
    if sync:
        sync_folder(path.parent)


def truncate(path: Path, size: int) -> None:
    """Leave the first ``size`` bytes."""
    file = os.open(path, _WRITE)
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


def _write(file: int, data: bytes, *, sync: bool = True) -> None:
    remaining = memoryview(data)
    while remaining:  # a system may take less than it was given
        remaining = remaining[os.write(file, remaining) :]
    if sync:
        os.fsync(file)
