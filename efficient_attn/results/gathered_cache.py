"""Gathered rows in Parquet, so that large runs are parsed once; needs the extra ``scale``.

JSON lines stay the record. A file's name is the digest of everything that its contents depend on: the shards and
run.json of each run, this package's code that reads them, and the libraries. It is in the user's cache, because what
comes with a stranger's run could be other rows. Nothing here fails: where there is no such file, rows are parsed.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from ..errors import UsageError
from . import durable, shards, store
from .user_cache import find_foreign_access, make_private_folder

LEAST_BYTES = 2**22  # of rows, which are parsed within a second
KEPT_FILES = 8
SOURCES = sorted(Path(__file__).parent.glob("*.py"))
PIECE_BYTES = 2**20
DIGEST_BYTES = 32  # before the Parquet, whose own checksums do not cover all of it
JSON_COLUMNS = ("curve", "alignment")  # of tuples
ADDED = "added:"  # before the names of columns that are not those of rows


class Gathered(NamedTuple):
    """The rows, and the columns that `gather` adds to them."""

    loaded: Any
    added: Any


def find_file(runs: Sequence[Path]) -> Path | None:
    """The file of these runs' rows, in their order, which need not exist. None for small runs, which are parsed faster,
    without pyarrow, or if the cache is not this user's alone."""
    shards_by_run = [shards.list_shards(run) for run in runs]
    if sum(path.stat().st_size for paths in shards_by_run for path in paths) < LEAST_BYTES or not find_spec("pyarrow"):
        return None
    with suppress(OSError, RuntimeError, UsageError):  # RuntimeError: no home at all; UsageError: a damaged run.json
        for run in runs:
            store.read_sessions(store.find_rows_path(run).parent)
        digest = hashlib.sha256(" ".join(version(name) for name in ("pandas", "pyarrow")).encode())
        run_files = [[*paths, paths[0].with_name(store.RUN_FILE)] for paths in shards_by_run if paths]
        for paths in (SOURCES, *run_files):
            digest.update(b"\0next run\0")
            for path in filter(Path.is_file, paths):
                digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
                with path.open("rb") as file:
                    while piece := file.read(PIECE_BYTES):
                        digest.update(piece)
        folder, problem = make_private_folder("rows")
        return None if problem else folder / f"{digest.hexdigest()[:32]}.rows"
    return None


def read(path: Path) -> Gathered | None:
    """The gathered rows; None if there are none, or the file is damaged or another user's."""
    from pyarrow import ArrowException

    try:
        if find_foreign_access(path):
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
            return None
        frame: Any = pd.read_parquet(io.BytesIO(content[DIGEST_BYTES:]))
        added = frame[[name for name in frame if name.startswith(ADDED)]]
        added = added.rename(columns=lambda name: name.removeprefix(ADDED))
        for name in JSON_COLUMNS:
            added[name] = pd.Series([_parse(text) for text in added[name]], index=added.index, dtype=object)
        path.touch()
    except (OSError, ValueError, KeyError, ArrowException):
        return None
    return Gathered(frame.drop(columns=[name for name in frame if name.startswith(ADDED)]), added)


def write(path: Path, gathered: Gathered) -> None:
    """Store gathered rows, and remove the files that were not used for longest."""
    from pyarrow import ArrowException

    added = gathered.added.copy()
    for name in JSON_COLUMNS:
        added[name] = pd.array([None if x is None else json.dumps(x) for x in added[name]], dtype="string")
    buffer = io.BytesIO()
    with suppress(OSError, ArrowException, TypeError):  # of task columns with values of several types
        frame = pd.concat([gathered.loaded, added.add_prefix(ADDED)], axis=1)
        frame.to_parquet(buffer, compression="zstd")
        content = buffer.getvalue()
        path.unlink(missing_ok=True)  # whose mode the new one would have
        durable.replace(path, hashlib.sha256(content).digest() + content, sync=False)
        files = sorted(path.parent.glob("*.rows"), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[KEPT_FILES:]:
            file.unlink(missing_ok=True)


def _parse(text: Any) -> Any:
    """Nested tuples from JSON."""
    return None if pd.isna(text) else _as_tuples(json.loads(text))


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
