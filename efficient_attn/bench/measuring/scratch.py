"""The folder of the run that a worker works for: where its rows so far are, and where a case may keep what it would
otherwise have to begin anew."""

from __future__ import annotations

from pathlib import Path

_folder: Path | None = None


def set_folder(folder: Path | None) -> None:
    """In a worker: the run's folder from now on."""
    global _folder
    _folder = folder


def get_folder() -> Path | None:
    """The run's folder; None where nothing is kept, as in a plan."""
    return _folder
