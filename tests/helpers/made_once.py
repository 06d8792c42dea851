"""What takes long to make is made by the first worker of a test session, for tests of all workers that only read it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

T = TypeVar("T")


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What ``make`` returns, which is pickled, for an empty folder. name: unique in the session."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"once-{name}"
    result = folder.with_suffix(".pickle")
    with FileLock(folder.with_suffix(".lock")):
        if not result.exists():
            folder.mkdir()  # fails if another test's attempt failed
            result.write_bytes(pickle.dumps(make(folder)))
    return pickle.loads(result.read_bytes())
