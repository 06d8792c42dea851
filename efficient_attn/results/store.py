"""A run's folder: rows as JSON lines, written so that what was written stays, and the environment beside them.

``run.json`` says what ran, where and how; ``rows*.jsonl`` hold a record a line. A record is never written over: a later
one of the same case supersedes it, and only damage is ever moved out (see `repair`). A published run, whose rows are
compressed, is read only.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import UsageError
from . import durable
from .lock import HOLDER, LOCK, FolderLock
from .machines import find_new_names, rename
from .repair import QUARANTINE, repair
from .rows import Record, Status
from .shards import PACKED, ROWS, ROWS_NAME, Damage, DamagedRecord, list_shards, scan, stem, warn

RUN = "run.json"


class StoreError(UsageError):
    """The disk did not take a record: what was written before is kept, and the run can be gone on with."""


class Writer:
    """The one writer of a run's folder, and of one shard in it. Each record is one write and one fsync.

    done: the status of every case that the folder holds, by its key. repairs: what was damaged, a sentence each.
    """

    def __init__(self, folder: Path, *, resume: bool = False, shard: str = ROWS) -> None:
        """Open a folder that is new or empty, or with ``resume`` one that holds a run already, which is repaired."""
        self.folder = folder
        self.done: dict[str, Status] = {}
        self.repairs: list[str] = []
        self._keys: dict[str, str] = {}
        try:
            durable.make_folder(folder)
            refuse_links(folder)
            if not (folder / LOCK).exists():  # a folder that is not ours gets nothing, not even a lock
                _refuse_foreign(folder, resume)
            self._lock = FolderLock(folder)
            try:
                _refuse_foreign(folder, resume)
                self._file = self._open(folder / shard)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written: {error.strerror or error}; choose another --out") from error

    def _open(self, shard: Path) -> int:
        """Take up what the folder holds already, then the shard for writing."""
        records, self.repairs = repair(self.folder, list_shards(self.folder))
        for record in records:
            self._append_session(record)
        return durable.open_to_append(shard)

    def write(self, record: Record) -> None:
        """Keep the record; it is on the disk when this returns. `StoreError` when the disk does not take it."""
        line = record.to_line().encode()
        with self._kept():
            durable.append(self._file, line)
        self._append_session(record)

    def describe(self, session: dict[str, Any]) -> None:
        """Keep what ran and where: beside those of earlier sessions, in place of this one's."""
        earlier = [s for s in _read_sessions(self.folder) if s.get("run_id") != session.get("run_id")]
        text = json.dumps({"sessions": [*earlier, session]}, indent=2, allow_nan=False) + "\n"
        with self._kept():
            durable.replace(self.folder / RUN, text.encode())

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """What is known of the sessions that wrote here so far."""
        return read_about(self.folder)

    def close(self) -> None:
        try:
            os.close(self._file)
        finally:
            self._lock.release()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append_session(self, record: Record) -> None:
        """A case counts as done by its latest record, whatever its sources were before."""
        key = record.row.case_key
        self.done.pop(self._keys.get(stem(key), key), None)
        self._keys[stem(key)] = key
        self.done[key] = record.row.status

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = f"{self.folder}: {error.strerror or error}"
            remedy = "what was written so far is kept; make room and go on with --resume"
            raise StoreError(f"{message}; {remedy}") from error


def read(run: Path, *, damaged: Callable[[Damage], object] = warn) -> list[Record]:
    """A run's records (a folder's, or one shard's): of each case the latest, in the place of its first.

    damaged: told of each line that was left out because it is broken or altered; else a `DamagedRecord` warning is.
    """
    names = _find_names(rows_path(run).parent)
    latest: dict[str, Record] = {}
    for path in list_shards(run):
        for _, line in scan(path):
            if isinstance(line, Damage):
                damaged(line)
            else:
                line.row.machine = names.get((line.row.run_id, line.row.machine), line.row.machine)
                latest[stem(line.row.case_key)] = line
    return list(latest.values())


def read_about(folder: Path) -> list[dict[str, Any]]:
    """The descriptions of the sessions that wrote a run: suite, command line, environment, machine."""
    return [rename(session) for session in _read_sessions(folder)]


def _find_names(folder: Path) -> dict[tuple[Any, Any], str]:
    """What the machines of older rows are called now."""
    try:
        return find_new_names(_read_sessions(folder))
    except UsageError as error:
        warnings.warn(f"{error}; machines keep the names that their rows hold", DamagedRecord, stacklevel=3)
        return {}


def _read_sessions(folder: Path) -> list[dict[str, Any]]:
    """As they were written."""
    path = folder / RUN
    if not path.is_file():
        return []
    try:
        return [dict(session) for session in json.loads(path.read_text(encoding="utf-8"))["sessions"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: damaged: {error}") from error


def rows_path(run: Path) -> Path:
    """Where a run's rows begin; `UsageError` when the folder holds none."""
    shard_paths = list_shards(run)
    if not shard_paths:
        raise UsageError(f"{run}: no run here (no {ROWS})")
    return shard_paths[0]


def is_own(path: Path) -> bool:
    """Whether a file has the name of one that a run lives on."""
    return path.name in (RUN, QUARANTINE, LOCK, HOLDER) or bool(ROWS_NAME.fullmatch(path.name))


def refuse_links(folder: Path) -> None:
    """`UsageError` where a run's own file would be written somewhere else."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and is_own(path):
            reason = "a link, and nothing is written through one"
            raise UsageError(f"{path}: {reason}; put the file itself there, or choose another folder")


def _refuse_foreign(folder: Path, resume: bool) -> None:
    """Whether this folder may be written to: a new one, or a run that is to be gone on with."""
    holds = sorted(path.name for path in folder.iterdir() if path.name not in (LOCK, HOLDER))
    if holds and not resume:
        raise UsageError(f"{folder}: not empty (holds {holds[0]}); choose another --out, or add --resume")
    if holds and not list_shards(folder):
        raise UsageError(f"{folder}: holds no run to resume (no {ROWS}); choose another --out")
    if packed := [path for path in list_shards(folder) if path.suffix == PACKED]:
        reason = f"published, its rows are compressed ({packed[0].name})"
        raise UsageError(f"{folder}: {reason}; choose another --out, or unpack them first: gzip -d {packed[0]}")
