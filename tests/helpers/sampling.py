"""The sample of tests marked ``sampled`` that a run has: it changes with the commit and can be repeated."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

SAMPLES = 150  # any 150 consecutive samples contain every test
SHARE = 12  # a test marked ``sampled`` is in one of 12 samples, unless the mark gives another number


def commit_number(folder: Path) -> int:
    """The commit's hash as a number; 0 without git."""
    command = ("git", "-C", str(folder), "rev-parse", "HEAD")
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout, 16)
    except (OSError, subprocess.CalledProcessError):
        return 0


def choose_sample(groups: Mapping[tuple, Sequence[str]], number: int) -> set[str]:
    """The ids of the tests in sample ``number``. groups: ids of similar tests by a key that ends in their share ``s``.
    Each test is in every s-th sample, so that any `SAMPLES` consecutive samples contain all of them."""
    chosen = set()
    for (*key, share), ids in groups.items():
        ordered = sorted(ids, key=lambda name: zlib.crc32(name.encode()))  # so that neighbours are in different samples
        first = zlib.crc32(repr(key).encode())  # so that groups of one test are in different samples too
        chosen.update(name for at, name in enumerate(ordered, first) if at % share == number % share)
    return chosen
