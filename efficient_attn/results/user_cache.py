"""The package's folder in the user's cache, and who else could have written there."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def user_folder() -> Path:
    """The package's folder in the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "efficient-attn"


def find_foreign_access(path: Path) -> str | None:
    """Why a folder or file could be someone else's work, which is not used; None if it is this user's alone."""
    if not hasattr(os, "getuid"):  # where permissions are not in these bits
        return None
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        problem = "is a link"
    elif status.st_uid != os.getuid():
        problem = "belongs to another user"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "can be written by others"
    else:
        return None
    return f"{path} {problem}: remove it, or set XDG_CACHE_HOME to a folder of your own"


def make_private_folder(name: str) -> tuple[Path, str | None]:
    """A folder of the user's cache that is the user's alone, and why it cannot be used, if so."""
    folder = user_folder() / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return folder, f"it cannot be stored in {folder}: {error.strerror or error}"
    return folder, find_foreign_access(folder)
