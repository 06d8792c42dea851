"""Runs in a folder: what each is, and which of its files may go because they can be made again. Rows never do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..results import checkpoints, frames, store
from ..results.cleaning import clean
from ..results.lock import HOLDER, LOCK, FolderLock
from ..results.shards import shards
from . import write


@dataclass(frozen=True)
class Kept:
    """A run's folder. suite, started: of its last session; finished: whether that came to its end. statuses: of its
    cases."""

    folder: Path
    suite: str
    started: str
    finished: bool
    statuses: dict[str, int]
    size: int

    def as_data(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}


def list_runs(root: Path) -> Iterator[Kept]:
    """The runs in a folder, the latest first. Raises `UsageError` where that is none."""
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; runs of yours go to results/local")
    found = [describe(path) for path in root.iterdir() if path.is_dir() and not path.is_symlink() and shards(path)]
    yield from sorted(found, key=lambda kept: kept.started, reverse=True)


def describe(folder: Path) -> Kept:
    sessions = store.about(folder)
    last = sessions[-1] if sessions else {}
    suite = last.get("suite")
    name = suite.get("name") if isinstance(suite, dict) else None
    statuses = Counter(record.row.status for record in frames.read_records(folder, damaged=lambda damage: None))
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    started = str(last.get("started") or "")
    return Kept(
        folder, clean(str(name or folder.name)), clean(started), bool(last.get("finished")), dict(statuses), size
    )


def find_leftovers(kept: Kept) -> list[Path]:
    """What may go: the report, which is made from the rows, and of a run that came to its end checkpoints and locks."""
    found = [kept.folder / name for name in sorted(write.find_report(kept.folder))]
    if kept.finished:
        place = kept.folder / checkpoints.CHECKPOINTS
        found += sorted(place.glob("*.safetensors*")) if place.is_dir() and not place.is_symlink() else []
        found += [kept.folder / name for name in (LOCK, HOLDER) if (kept.folder / name).is_file()]
    return found


def remove(kept: Kept) -> list[Path]:
    """Take away what may go. Raises `UsageError` where somebody writes to the run."""
    lock = FolderLock(kept.folder)
    try:
        gone = [path for path in find_leftovers(kept) if not path.is_symlink()]
        for path in gone:
            path.unlink(missing_ok=True)
        for name in (write.PLOTS, checkpoints.CHECKPOINTS):
            place = kept.folder / name
            if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
                place.rmdir()
    except OSError as error:
        raise UsageError(f"{kept.folder}: cannot be cleaned: {error.strerror or error}") from error
    finally:
        lock.release()
    return gone
