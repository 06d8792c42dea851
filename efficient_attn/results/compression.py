"""Rows of a finished run made small, for git: every line stays, byte for byte."""

from __future__ import annotations

import gzip
from pathlib import Path

from ..errors import UsageError
from . import checkpoints, durable
from .lock import FolderLock
from .shards import PACKED, Damage, list_shards, scan
from .store import refuse_links


def pack(folder: Path) -> list[Path]:
    """Compress a run's files of rows; returns them. A plain one goes when its compressed one was read back the same,
    and what unfinished cases kept goes with it: nothing goes on here.

    `UsageError` for a run that is being written, for what `check_whole` refuses, and for a compressed file that holds
    something else.
    """
    refuse_links(folder)
    lock = FolderLock(folder)
    try:
        check_complete(folder)
        packed = list(dict.fromkeys(_pack_one(path) for path in list_shards(folder)))
        checkpoints.clear(folder)
        return packed
    finally:
        lock.release()


def check_complete(folder: Path) -> None:
    """`UsageError` for damaged rows: once they are compressed they cannot be repaired."""
    for path in list_shards(folder):
        for _, line in scan(path):
            if isinstance(line, Damage):
                raise UsageError(f"{line}; repair the run first: run SUITE --resume --out {folder}")


def _pack_one(path: Path) -> Path:
    if path.suffix == PACKED:
        return path
    packed, data = path.with_name(path.name + PACKED), path.read_bytes()
    if not packed.exists():
        durable.replace(packed, gzip.compress(data, mtime=0))  # the same bytes for the same rows, whenever
    if gzip.decompress(packed.read_bytes()) != data:
        raise UsageError(f"{packed}: holds other rows than {path.name}; keep one of the two")
    path.unlink()
    return packed
