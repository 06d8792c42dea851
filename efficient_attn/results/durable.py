"""Files that survive a crash: when these functions return, the data are on the disk, complete.

Links are never followed: in a folder that others can write to, they may lead anywhere.
"""

import errno
import os
import secrets
import shutil
from pathlib import Path

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # does not exist on Windows
_CREATE = os.O_WRONLY | os.O_CREAT | _NOFOLLOW | getattr(os, "O_BINARY", 0)


def open_nofollow(path: str, flags: int) -> int:
    """An opener for `open` that does not follow links."""
    return os.open(path, flags | _NOFOLLOW, 0o644)


def open_to_append(path: Path) -> int:
    """A file open for appending, created if necessary."""
    file = os.open(path, _CREATE | os.O_APPEND, 0o644)
    sync_folder(path.parent)
    return file


def append(file: int, data: bytes) -> None:
    """Append the data and sync. An error removes what was written, so that a file of lines remains valid."""
    size = os.fstat(file).st_size
    try:
        _write(file, data)
    except OSError:
        os.ftruncate(file, size)
        raise


def replace(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a file's contents: readers see the old or the new contents, never a part.

    A link is replaced by the file; its target is unchanged. sync: False for files that can be generated again.
    """
    # a random name, so that nobody can have put a link there
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    file = os.open(temporary, _CREATE | os.O_EXCL, 0o644)
    try:
        try:
            _write(file, data, sync=sync)
        finally:
            os.close(file)
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it would use the last space
        raise
    if sync:
        sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create the folder and its parents, and sync the folders that contain new ones."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder: the fsync of a new file does not guarantee that its name is stored."""
    if os.name == "nt":  # folders cannot be opened there
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the errors of some network file systems, which do not support it
            raise
    finally:
        os.close(file)


def _write(file: int, data: bytes, *, sync: bool = True) -> None:
    remaining = memoryview(data)
    while remaining:  # a system may write less than requested
        remaining = remaining[os.write(file, remaining) :]
    if sync:
        os.fsync(file)
