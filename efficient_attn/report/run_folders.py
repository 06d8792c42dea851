"""List runs in a folder, and remove files that can be rebuilt. Rows are never removed."""

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..results import checkpoints, frames, store
from ..results.lock import HOLDER_FILE, LOCK_FILE, lock_folder
from ..results.sanitize import sanitize_line
from ..results.shards import list_run_folders
from . import write


@dataclass(frozen=True)
class RunFolder:
    """A run's folder. suite, started, finished: of its last session. statuses: cases by status. size: bytes."""

    folder: Path
    suite: str
    started: str
    finished: bool
    statuses: dict[str, int]
    size: int

    def as_data(self) -> dict[str, Any]:
        """The folder as data."""
        return asdict(self) | {"folder": str(self.folder)}


def list_runs(root: Path) -> list[RunFolder]:
    """The runs in a folder, latest first. Raises `UsageError` if there is no such folder."""
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; runs of yours go to results/local")
    return sorted(map(describe_run, list_run_folders(root)), key=lambda run: run.started, reverse=True)


def describe_run(folder: Path) -> RunFolder:
    """A run's folder: suite, sessions, cases by status, and size."""
    last_session = (store.read_sessions(folder) or [{}])[-1]
    suite = last_session.get("suite")
    name = suite.get("name") if isinstance(suite, dict) else None
    statuses = Counter(
        record.row.status for record in frames.read_records(folder, keep_samples=lambda _: {}, on_damage=lambda _: None)
    )
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return RunFolder(
        folder=folder,
        suite=sanitize_line(str(name or folder.name)),
        started=sanitize_line(str(last_session.get("started") or "")),
        finished=bool(last_session.get("finished")),
        statuses=dict(statuses),
        size=size,
    )


def find_removable_files(run_folder: RunFolder) -> list[Path]:
    """Files that can be removed: the report and, if the run has finished, checkpoints and locks."""
    folder = run_folder.folder
    paths = [folder / name for name in sorted(write.find_report(folder))]
    if run_folder.finished:
        paths += checkpoints.list_files(folder)
        paths += [folder / name for name in (LOCK_FILE, HOLDER_FILE) if (folder / name).is_file()]
    return paths


def remove_derived_files(run_folder: RunFolder) -> list[Path]:
    """Remove files that can be rebuilt. Raises `UsageError` if the run is locked."""
    try:
        with lock_folder(run_folder.folder):
            removed = [path for path in find_removable_files(run_folder) if not path.is_symlink()]
            for path in removed:
                path.unlink(missing_ok=True)
            for name in (write.PLOTS_FOLDER, checkpoints.CHECKPOINT_FOLDER):
                with suppress(OSError):  # raised where files are left, and for a link
                    (run_folder.folder / name).rmdir()
            return removed
    except OSError as error:
        raise UsageError(f"{run_folder.folder}: cannot be cleaned: {error.strerror or error}") from error
