"""The run that a worker works for: its folder, with the rows so far, where a case may store checkpoints, and how many
cases run at the same time."""

from __future__ import annotations

from pathlib import Path

_folder: Path | None = None
_jobs = 1


def set_folder(folder: Path | None, *, jobs: int = 1) -> None:
    """In a worker: the run's folder from now on, and the most cases at the same time."""
    global _folder, _jobs
    _folder, _jobs = folder, jobs


def get_folder() -> Path | None:
    """The run's folder; None if nothing is stored, as in a plan."""
    return _folder


def get_jobs() -> int:
    """How many cases run at the same time at most, this one included."""
    return _jobs
