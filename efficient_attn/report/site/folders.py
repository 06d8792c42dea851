"""The site's folder: checked for what is not ours, and swapped whole, so that a kill leaves the old or the new one."""

from __future__ import annotations

import ctypes
import glob
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from ...errors import UsageError
from ...results import marks
from .naming import digest

FILES = "files.json"  # what the site consists of, with digests: anything else in its folder is somebody else's
LOCK, NEW, OLD = "lock", "site", "old"  # what a publisher keeps in a folder beside the site while it works
EXCHANGE, HERE = 2, -100  # renameat2's flag, and its word for the current folder


def replace_site(site: Path, files: Mapping[str, bytes]) -> None:
    """Put these files in the place of an earlier site, all at once. `UsageError` where the folder is not ours alone."""
    check_site(site)
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        _sweep(site)
        work, lock = _open_work(site)
        try:
            _write_all(work / NEW, files)
            check_site(site)  # again: writing took a while
            _swap(work / NEW, site)
        finally:
            _remove(work, lock)
    except OSError as error:
        raise UsageError(f"{site}: cannot be written: {error.strerror or error}; choose another --site") from error


def check_site(site: Path) -> None:
    """`UsageError` unless the folder is absent, empty, or holds an earlier site and nothing else."""
    marks.check_folder(site)
    try:
        if not site.exists():
            return
        if not site.is_dir():
            raise UsageError(f"{site}: a file, not a folder; choose another --site")
        known = _read_files(site)
        for path in sorted(site.rglob("*")):
            name = path.relative_to(site).as_posix()
            if name != FILES and not (path.is_dir() and not path.is_symlink()) and not _is_known(path, known.get(name)):
                told = "changed since it was published" if name in known else "not made by efficient-attn"
                raise UsageError(f"{site}: holds {name}, {told}; move it away, or choose another --site")
    except OSError as error:
        raise UsageError(f"{site}: cannot be read: {error.strerror or error}; choose another --site") from error


def _is_known(path: Path, expected: str | None) -> bool:
    return expected is not None and path.is_file() and not path.is_symlink() and digest(path.read_bytes()) == expected


def _read_files(site: Path) -> dict[str, str]:
    """The files of the site here, by what it says itself; none where it is no site."""
    told = site / FILES
    if told.is_symlink() or not told.is_file() or not marks.is_marked(told):
        if os.path.lexists(told):
            raise UsageError(f"{site}: holds {FILES}, not made by efficient-attn; choose another --site")
        return {}
    try:
        said = json.loads(told.read_bytes())["files"]
        return {str(name): str(value) for name, value in said.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{told}: damaged: {error}; move the folder away, or choose another --site") from error


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    told = {"note": marks.MARK, "files": {name: digest(data) for name, data in sorted(files.items())}}
    for name, data in {**files, FILES: json.dumps(told, indent=0).encode()}.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name}: outside of the site")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _swap(new: Path, site: Path) -> None:
    """The new folder in the old one's place; the old one, if there was any, in the new one's."""
    if not site.exists():
        os.rename(new, site)
    elif not _exchange(new, site):
        # a system that cannot exchange two names: a kill between these lines leaves the old site under the other name
        old = new.with_name(OLD)
        try:
            os.rename(site, old)
            os.rename(new, site)
        except BaseException:  # an interrupt too: what is not put back would be cleaned away
            if old.is_dir() and not site.exists():
                os.rename(old, site)
            raise


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step. False where the system, or this file system, knows no such thing."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    return call is not None and call(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0


def _open_work(site: Path) -> tuple[Path, FileLock]:
    """A folder of one's own beside the site, held by its lock for as long as one lives."""
    while True:
        work = site.with_name(f".{site.name}.{secrets.token_hex(8)}.tmp")
        work.mkdir()
        lock = FileLock(work / LOCK, fallback_to_soft=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:  # somebody swept it before it was locked
            continue
        return work, lock


def _remove(work: Path, lock: FileLock) -> None:
    """The lock goes last, so that whatever a kill leaves of it is still known to be nobody's."""
    for name in (NEW, OLD):
        if (work / name).exists():
            shutil.rmtree(work / name)
    lock.release()
    shutil.rmtree(work, ignore_errors=True)  # a sweeper may be quicker


def _sweep(site: Path) -> None:
    """Remove what killed publishers left beside the site: what nobody holds. What another builds now stays."""
    for left in site.parent.glob(f".{glob.escape(site.name)}.{'[0-9a-f]' * 16}.tmp"):
        if left.is_symlink() or not left.is_dir() or {path.name for path in left.iterdir()} - {LOCK, NEW, OLD}:
            continue
        lock = FileLock(left / LOCK, fallback_to_soft=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            continue
        try:
            if not site.exists() and (left / OLD).is_dir():
                os.rename(left / OLD, site)
        finally:
            _remove(left, lock)
