"""A run's folder: rows as JSON lines, written durably, and the environment.

``run.json`` describes the sessions: suite, command and environment; ``rows*.jsonl`` contain one record a line. Records
are never overwritten: a later one of the same case supersedes earlier ones, and only damaged lines are removed (see
`repair`). A published run, with compressed rows, is read only.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..garbage import garbage_collection_disabled
from . import durable, shards
from .checkpoints import digest_of
from .lock import HOLDER_FILE, LOCK_FILE, lock_folder
from .machines import find_machine_names, rename_machine
from .repair import QUARANTINE_FILE, repair
from .rows import Record, Status

RUN_FILE = "run.json"
# of a session in run.json: the digests of its planned cases, if it had several jobs, or was part of a plan, or merged
ORDER_KEY = "order"
OLDEST_COMPARABLE_PROTOCOL = 4  # earlier ones verified and timed with other code (`bench.case.PROTOCOL`)


class StoreError(UsageError):
    """A record could not be written; what was written before is kept, and the run can be resumed."""


class RunWriter:
    """The only writer of a run's folder and of one shard in it. Each record is one write and one fsync.

    statuses: the status of every case in the folder, by its key. repairs: descriptions of repaired damage.
    """

    def __init__(self, folder: Path, *, resume: bool = False, shard: str = shards.ROWS_FILE) -> None:
        """Open a new or empty folder, or with ``resume`` one that contains a run, which is repaired."""
        self.folder = folder
        self.statuses: dict[str, Status] = {}
        self._keys: dict[str, str] = {}
        try:
            durable.make_folder(folder)
            check_no_links(folder)
            if not (folder / LOCK_FILE).exists():  # checked first, because locking writes to the folder
                _check_run_folder(folder, resume)
            with ExitStack() as resources:
                resources.enter_context(lock_folder(folder))
                _check_run_folder(folder, resume)
                records, self.repairs = repair(folder, shards.list_shards(folder))
                self._file = durable.open_to_append(folder / shard)
                resources.callback(os.close, self._file)
                self._resources = resources.pop_all()
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written: {error.strerror or error}; choose another --out") from error
        for record in records:
            self._mark_done(record)

    def write(self, record: Record) -> None:
        """Append the record, and sync it to the disk. Raises `StoreError` if it cannot be written."""
        line = record.to_line().encode()
        with self._storing():
            durable.append(self._file, line)
        self._mark_done(record)

    def write_session(self, session: dict[str, Any]) -> None:
        """Store what ran and where: appended to earlier sessions, replacing this session's entry."""
        earlier = [s for s in read_raw_sessions(self.folder) if s.get("run_id") != session.get("run_id")]
        text = json.dumps({"sessions": [*earlier, session]}, indent=2, allow_nan=False) + "\n"
        with self._storing():
            durable.replace(self.folder / RUN_FILE, text.encode())

    def close(self) -> None:
        """Close the file and release the lock."""
        self._resources.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mark_done(self, record: Record) -> None:
        """Store the status of a case's latest record, whose digest may differ from that of earlier ones."""
        key = record.row.case_key
        self.statuses.pop(self._keys.get(shards.strip_digest(key), key), None)
        self._keys[shards.strip_digest(key)] = key
        self.statuses[key] = record.row.status

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = "what was written so far is saved; free some space and continue with --resume"
            raise StoreError(f"{self.folder}: {error.strerror or error}; {remedy}") from error


def read(
    run: Path,
    *,
    keep_samples: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    on_damage: Callable[[shards.Damage], object] | None = None,
) -> list[Record]:
    """The records of a run (a folder, or one shard): the latest of each case, in the position of its first. Those of a
    session with several jobs are in the order of its plan instead, as they are stored in that of their ends.

    keep_samples: what of a record's samples is kept, as a function of them; by default all, which take twice the memory
    of the rows. on_damage: called with each damaged line that was skipped; by default a `DamagedRecord` warning for
    each file.
    """
    sessions = read_intact_sessions(find_rows_path(run).parent, "machines keep the names in their rows")
    names = find_machine_names(sessions)
    latest: dict[str, Record] = {}
    damages: list[shards.Damage] = []
    with garbage_collection_disabled(collect_first=False):  # records have no cycles, for which they would be searched
        for path in shards.list_shards(run):
            for _, line in shards.scan_lines(path):
                if isinstance(line, shards.Damage):
                    (on_damage or damages.append)(line)
                else:
                    line.row.machine = names.get((line.row.run_id, line.row.machine), line.row.machine)
                    if keep_samples:
                        line.samples = keep_samples(line.samples)
                    latest[shards.strip_digest(line.row.case_key)] = line
    shards.warn_of_damages(damages)
    numbers = number_cases(sessions)
    return sorted(latest.values(), key=lambda record: numbers.get(digest_of(record.row.case_key), -1))


def number_cases(sessions: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The positions of planned cases by their digests, as sessions recorded them: those of the first session first."""
    digests = dict.fromkeys(digest for session in sessions for digest in session.get(ORDER_KEY, ()))
    return {digest: number for number, digest in enumerate(digests)}


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """The descriptions of the sessions that wrote a run: suite, command line, environment, machine."""
    return [rename_machine(session) for session in read_raw_sessions(folder)]


def is_older_protocol(session: Mapping[str, Any]) -> bool:
    """Whether a session of run.json was measured with a protocol whose results are no longer comparable."""
    protocol = session.get("protocol")
    return isinstance(protocol, int) and protocol < OLDEST_COMPARABLE_PROTOCOL


def read_intact_sessions(folder: Path, consequence: str) -> list[dict[str, Any]]:
    """The sessions as they were written; none, with a warning of the consequence, if run.json is damaged."""
    try:
        return read_raw_sessions(folder)
    except UsageError as error:
        warnings.warn(f"{error}; {consequence}", shards.DamagedRecord, stacklevel=3)
        return []


def read_raw_sessions(folder: Path) -> list[dict[str, Any]]:
    """The sessions as they were written, without new names of machines."""
    path = folder / RUN_FILE
    if not path.is_file():
        return []
    from . import schema  # imports pydantic, without which verbs that read no run start

    try:
        if (size := path.stat().st_size) > schema.MAX_RUN_FILE_BYTES:
            raise ValueError(f"it has {size} bytes, more than {schema.MAX_RUN_FILE_BYTES}")
        content = schema.parse_json(path.read_bytes())
        schema.validate(schema.get_run_file_adapter(), content)
        return content["sessions"]
    except ValueError as error:
        raise UsageError(f"{path}: damaged: {error}") from error


def find_rows_path(run: Path) -> Path:
    """A run's first row file. Raises `UsageError` if the folder has none."""
    shard_paths = shards.list_shards(run)
    if not shard_paths:
        raise UsageError(f"{run}: no run here (no {shards.ROWS_FILE})")
    return shard_paths[0]


def describe_older_protocol(*sessions: Mapping[str, Any]) -> str:
    """``protocol 2, older code`` if a session of a run was measured with an older protocol, else nothing."""
    older = [session["protocol"] for session in sessions if is_older_protocol(session)]
    return f"protocol {min(older)}, older code" if older else ""


def is_run_file_name(path: Path) -> bool:
    """Whether a file has the name of one of a run's own files."""
    own_names = (RUN_FILE, QUARANTINE_FILE, LOCK_FILE, HOLDER_FILE)
    return path.name in own_names or shards.ROWS_FILE_PATTERN.fullmatch(path.name) is not None


def check_no_links(folder: Path) -> None:
    """Raise `UsageError` if a run's own file is a link to somewhere else."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and is_run_file_name(path):
            remedy = "put the file itself there, or choose another folder"
            raise UsageError(f"{path}: a link; nothing is written through links; {remedy}")


def _check_run_folder(folder: Path, resume: bool) -> None:
    """Check that this folder may be written to: a new one, or a run to be resumed."""
    names = sorted(path.name for path in folder.iterdir() if path.name not in (LOCK_FILE, HOLDER_FILE))
    if names and not resume:
        raise UsageError(f"{folder}: not empty (contains {names[0]}); choose another --out, or add --resume")
    if names and not shards.list_shards(folder):
        raise UsageError(f"{folder}: contains no run to resume (no {shards.ROWS_FILE}); choose another --out")
    if compressed := [path for path in shards.list_shards(folder) if path.suffix == shards.COMPRESSED_SUFFIX]:
        reason = f"published, its rows are compressed ({compressed[0].name})"
        raise UsageError(f"{folder}: {reason}; choose another --out, or unpack them first: gzip -d {compressed[0]}")
