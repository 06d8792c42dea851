"""What unfinished cases keep in a run's folder, to go on from: gone once they have their rows, and once published."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .rows import NO_FAILURE, Status

CHECKPOINT_FOLDER = "checkpoints"
_FILE_NAME = re.compile(r"\.?([0-9a-f]{12})\.safetensors(\.[0-9a-f]+\.tmp)?")  # the latter where a writer was killed


def path_of(folder: Path, digest: str) -> Path:
    """The checkpoint of the case of a digest."""
    return folder / CHECKPOINT_FOLDER / f"{digest}.safetensors"


def digest_of(case_key: str) -> str:
    """The digest in a case's key."""
    return case_key.rpartition("#")[2]


def is_resumable(status: Status) -> bool:
    """Whether a case that ended so would, tried again, go on from where it was. What was invalid would be so again."""
    return status not in (*NO_FAILURE, "invalid")


def clear(folder: Path, kept_digests: Collection[str] = (), *, digest: str | None = None) -> None:
    """Take away the checkpoints in a run's folder but those of the digests ``kept``; with ``digest`` that one alone.

    A folder that is empty goes with them. What is not ours stays, and so does what the disk does not let go of, which
    costs room alone.
    """
    checkpoint_folder = folder / CHECKPOINT_FOLDER
    if checkpoint_folder.is_symlink() or not checkpoint_folder.is_dir():
        return
    with suppress(OSError):
        for path in sorted(checkpoint_folder.iterdir()):
            match = _FILE_NAME.fullmatch(path.name)
            if match and match[1] not in kept_digests and digest in (None, match[1]):
                path.unlink(missing_ok=True)
        checkpoint_folder.rmdir()  # refused where anything is left
