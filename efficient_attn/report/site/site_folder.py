"""The site's folder: checked for foreign files and replaced atomically, so that a killed process leaves the old or the
new site."""

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
from ...results import file_marks
from .site_names import digest

FILE_LIST = "files.json"  # list of the site's files with digests; any other file is foreign
LOCK_NAME, NEW_NAME, OLD_NAME = "lock", "site", "old"  # entries of the temporary folder next to the site
RENAME_EXCHANGE, AT_FDCWD = 2, -100  # constants of renameat2


def replace_site(site: Path, files: Mapping[str, bytes]) -> None:
    """Replace an earlier site by these files as a whole. Raises `UsageError` if its folder contains foreign files."""
    check_site(site)
    try:
        site.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(site)
        work, lock = _make_work_folder(site)
        try:
            _write_files(work / NEW_NAME, files)
            check_site(site)  # again, as writing takes a while
            _replace_folder(work / NEW_NAME, site)
        finally:
            _remove_work_folder(work, lock)
    except OSError as error:
        raise UsageError(f"{site}: cannot be written: {error.strerror or error}; choose another --site") from error


def check_site(site: Path) -> None:
    """Raise `UsageError` unless the folder is missing, empty, or contains only an earlier site."""
    file_marks.check_folder(site)
    try:
        if not site.exists():
            return
        if not site.is_dir():
            raise UsageError(f"{site}: a file, not a folder; choose another --site")
        digests = _read_file_list(site)
        for path in sorted(site.rglob("*")):
            name, is_link = path.relative_to(site).as_posix(), path.is_symlink()
            if name == FILE_LIST or (path.is_dir() and not is_link):
                continue
            if name not in digests or is_link or not path.is_file() or digest(path.read_bytes()) != digests[name]:
                reason = "changed since it was published" if name in digests else "not written by efficient-attn"
                raise UsageError(f"{site}: holds {name}, {reason}; move it away, or choose another --site")
    except OSError as error:
        raise UsageError(f"{site}: cannot be read: {error.strerror or error}; choose another --site") from error


def _read_file_list(site: Path) -> dict[str, str]:
    """Read the digests of an earlier site's files; empty if there is no site."""
    list_path = site / FILE_LIST
    if not os.path.lexists(list_path):
        return {}
    if list_path.is_symlink() or not list_path.is_file() or not file_marks.is_marked(list_path):
        raise UsageError(f"{site}: holds {FILE_LIST}, not written by efficient-attn; choose another --site")
    try:
        digests = json.loads(list_path.read_bytes())["files"]
        return {str(name): str(value) for name, value in digests.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{list_path}: damaged: {error}; move the folder away, or choose another --site") from error


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    file_list = {"note": file_marks.MARK, "files": {name: digest(data) for name, data in sorted(files.items())}}
    for name, data in {**files, FILE_LIST: json.dumps(file_list, indent=0).encode()}.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name}: outside of the site")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _replace_folder(new: Path, site: Path) -> None:
    """Exchange the new and the old folder; without an old one, rename the new one."""
    if not site.exists():
        os.rename(new, site)
    elif not _exchange(new, site):
        # no atomic exchange: if the process is killed between the renames, the old site is left in the work folder
        old = new.with_name(OLD_NAME)
        try:
            os.rename(site, old)
            os.rename(new, site)
        except BaseException:  # also on interrupts, as otherwise the old site would be removed with the work folder
            if old.is_dir() and not site.exists():
                os.rename(old, site)
            raise


def _exchange(first: Path, other: Path) -> bool:
    """Exchange two folders atomically. Returns False if the system or the file system does not support it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    return call is not None and call(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0


def _try_lock(work: Path) -> FileLock | None:
    """Lock a work folder as long as this process lives; None if another process has locked it."""
    lock = FileLock(work / LOCK_NAME, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return None
    return lock


def _make_work_folder(site: Path) -> tuple[Path, FileLock]:
    """Create a work folder next to the site, and lock it."""
    while True:
        work = site.with_name(f".{site.name}.{secrets.token_hex(8)}.tmp")
        work.mkdir()
        if (lock := _try_lock(work)) is not None:  # else another process removes it
            return work, lock


def _remove_work_folder(work: Path, lock: FileLock) -> None:
    """Remove a work folder, its lock last, so that other processes recognize what a killed process leaves."""
    for name in (NEW_NAME, OLD_NAME):
        if (work / name).exists():
            shutil.rmtree(work / name)
    lock.release()
    shutil.rmtree(work, ignore_errors=True)  # another process may have removed it


def _remove_leftovers(site: Path) -> None:
    """Remove unlocked work folders of killed processes next to the site; restore an old site found in them."""
    for leftover in site.parent.glob(f".{glob.escape(site.name)}.{'[0-9a-f]' * 16}.tmp"):
        if leftover.is_symlink() or not leftover.is_dir():
            continue
        names = {path.name for path in leftover.iterdir()}
        lock = None if names - {LOCK_NAME, NEW_NAME, OLD_NAME} else _try_lock(leftover)
        if lock is not None:
            try:
                if not site.exists() and OLD_NAME in names:
                    os.rename(leftover / OLD_NAME, site)
            finally:
                _remove_work_folder(leftover, lock)
