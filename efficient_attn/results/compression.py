"""Compress the rows of a finished run for git, without changing a byte of any line."""

import gzip
from pathlib import Path

from ..errors import UsageError
from . import checkpoints, durable
from .lock import lock_folder
from .shards import COMPRESSED_SUFFIX, Damage, list_shards, scan_lines
from .store import check_no_links


def compress_rows(folder: Path) -> list[Path]:
    """Compress a run's row files and return them. Plain files are removed once the compressed ones were read back, and
    so are checkpoints and models: a compressed run is not resumed.

    Raises `UsageError` for a run that is being written, for damaged rows, and for a compressed file with other
    contents.
    """
    check_no_links(folder)
    with lock_folder(folder):
        check_undamaged(folder)
        for path in list_shards(folder):
            if path.suffix != COMPRESSED_SUFFIX:
                _compress_shard(path)
        checkpoints.clear(folder, models=True)
        return list_shards(folder)


def check_undamaged(folder: Path) -> None:
    """Raise `UsageError` for damaged rows, which could not be repaired once they are compressed."""
    for path in list_shards(folder):
        for _, line in scan_lines(path):
            if isinstance(line, Damage):
                raise UsageError(f"{line}; repair the run first: run SUITE --resume --out {folder}")


def _compress_shard(path: Path) -> None:
    compressed, data = path.with_name(path.name + COMPRESSED_SUFFIX), path.read_bytes()
    if not compressed.exists():
        durable.replace(compressed, gzip.compress(data, mtime=0))  # the same bytes at any time
    if gzip.decompress(compressed.read_bytes()) != data:
        raise UsageError(f"{compressed}: contains other rows than {path.name}; keep one of the two")
    path.unlink()
