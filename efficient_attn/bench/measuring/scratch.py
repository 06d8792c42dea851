"""The folder of the run that a worker works for, with the rows so far, where a case may store checkpoints."""

from __future__ import annotations

from pathlib import Path

_folder: Path | None = None


def set_folder(folder: Path | None) -> None:
    """In a worker: the run's folder from now on."""
    global _folder
    _folder = folder


def get_folder() -> Path | None:
    """The run's folder; None if nothing is stored, as in a plan."""
    return _folder
