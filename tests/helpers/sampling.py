"""Which of the tests marked ``sampled`` a run holds: a part that changes from commit to commit and can be repeated."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

SAMPLES = 90  # any so many consecutive samples hold every test between them
SHARE = 10  # a test marked ``sampled`` is in one of so many samples, where the mark names no other number


def commit_number(folder: Path) -> int:
    """The commit's hash as a number; 0 without git."""
    command = ("git", "-C", str(folder), "rev-parse", "HEAD")
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout, 16)
    except (OSError, subprocess.CalledProcessError):
        return 0


def choose_sample(groups: Mapping[tuple, Sequence[str]], number: int) -> set[str]:
    """The tests of sample ``number``, by their ids. groups: alike tests under a key that ends in their share, ``s``:
    each is in every s-th sample, so that any `SAMPLES` consecutive samples hold all of them."""
    chosen = set()
    for (*_, share), ids in groups.items():
        ordered = sorted(ids, key=lambda name: zlib.crc32(name.encode()))  # so that neighbours part
        chosen.update(name for at, name in enumerate(ordered) if at % share == number % share)
    return chosen
