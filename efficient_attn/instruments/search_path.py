"""New Python processes that import what this one does, in whatever folder they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH")


def make_search_path() -> dict[str, str]:
    """Variables with which a new process searches modules where this one does. Without them it would search its working
    folder first, where another copy of this package may lie."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "PYTHONSAFEPATH": "1"}


def read_search_path() -> dict[str, str | None]:
    """The variables as they are, None for those without a value."""
    return {name: os.environ.get(name) for name in VARIABLES}


def set_search_path(variables: Mapping[str, str | None]) -> None:
    """Set or remove the variables."""
    for name, value in variables.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
