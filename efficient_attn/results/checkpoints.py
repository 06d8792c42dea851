"""Checkpoints of unfinished cases in a run's folder, removed when the cases have rows, and trained models from which
other cases start; both are removed when a run is published."""

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .rows import NO_FAILURE, Status

CHECKPOINT_FOLDER = "checkpoints"
MODEL_SUFFIX = "model.pt"
# with the suffix of files whose writer was killed; and those of earlier versions, which are not read any more
_FILE_NAME = re.compile(r"\.?[0-9a-f]{12}(?:\.model)?\.(?:pt|safetensors)(\.[0-9a-f]+\.tmp)?")


def path_of(folder: Path, digest: str) -> Path:
    """The checkpoint of the case of a digest."""
    return folder / CHECKPOINT_FOLDER / f"{digest}.pt"


def model_path_of(folder: Path, digest: str) -> Path:
    """The trained model of the case of a digest."""
    return folder / CHECKPOINT_FOLDER / f"{digest}.{MODEL_SUFFIX}"


def digest_of(case_key: str) -> str:
    """The digest in a case's key."""
    return case_key.rpartition("#")[2]


def is_resumable(status: Status) -> bool:
    """Whether a case with this status continues from its checkpoint when it is run again."""
    return status not in (*NO_FAILURE, "invalid")


def list_files(folder: Path) -> list[Path]:
    """The checkpoints and models in a run's folder, with unfinished ones; none through a link."""
    checkpoint_folder = folder / CHECKPOINT_FOLDER
    if checkpoint_folder.is_symlink() or not checkpoint_folder.is_dir():
        return []
    return [path for path in sorted(checkpoint_folder.iterdir()) if _FILE_NAME.fullmatch(path.name)]


def clear(folder: Path, kept_digests: Collection[str] = (), *, digest: str | None = None, models: bool = False) -> None:
    """Remove the checkpoints in a run's folder, except those of ``kept_digests``, or only that of ``digest``.

    models: also trained models. An empty folder is removed too, except after a single one, when other workers may be
    about to write there. Other files, and files that cannot be removed, are kept.
    """
    with suppress(OSError):
        for path in list_files(folder):
            file_digest, _, suffix = path.name.removeprefix(".").partition(".")
            is_kept = file_digest in kept_digests or (suffix == MODEL_SUFFIX and not models)
            if not is_kept and digest in (None, file_digest):
                path.unlink(missing_ok=True)
        if digest is None:
            (folder / CHECKPOINT_FOLDER).rmdir()  # raises where files are left, and for a link
