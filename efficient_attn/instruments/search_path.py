"""New Python processes that import what this one does, in whatever folder they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH")


def make_search_path() -> dict[str, str]:
    """Variables with which a new process searches modules where this one does. Without them it would search its working
    folder first, where another copy of this package may lie. Folders with another copy come last: this process may have
    imported its own before they were added."""
    folders = sorted((path or os.getcwd() for path in sys.path), key=_has_another_copy)
    return {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


def _has_another_copy(folder: str) -> bool:
    copy = Path(folder, PACKAGE.name)
    return copy.is_dir() and copy.resolve() != PACKAGE


def read_search_path() -> dict[str, str | None]:
    """The variables as they are, None for those without a value."""
    return {name: os.environ.get(name) for name in VARIABLES}


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set variables of the environment, or remove those without a value."""
    for name, value in variables.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
