"""Merge runs of one suite, or the parts of one plan, into a new folder: one record a case, whatever the order of runs.

Of a group's cases, which were timed together, the records of one session are preferred: of the one with most results,
then of the latest. Each case that it has not measured comes from the latest session that has, a success before a
failure. Lines are copied as they are, and the folders that are merged do not change.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import UsageError
from . import durable, shards, store
from .checkpoints import digest_of
from .exchange import UNMEASURED_STATUSES, name_group, record_stem
from .lock import lock_folder
from .machines import rename_machine
from .repair import QUARANTINE_FILE, format_damage
from .rows import Status

SAME_IN_FOLDER = ("machine", "torch", "gpu_libraries")  # facts that may not differ between the sessions of one folder
PLAN_KEY = "plan"  # of a session in run.json: the digest of the plan of which it measured a part

Session: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class StoredLine:
    """A record as it is stored. case: its key without the digest. group: what it shares with cases timed with it."""

    data: bytes
    run_id: str
    case: str
    digest: str
    group: str
    status: Status

    @property
    def is_measured(self) -> bool:
        """Whether the case ran."""
        return self.status not in UNMEASURED_STATUSES


@dataclass(frozen=True)
class Conflict:
    """A case of which there are several records. chosen, left_out: the ids of their sessions."""

    case: str
    chosen: str
    left_out: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.case}: kept that of {self.chosen}, left out {', '.join(self.left_out)}"


@dataclass(frozen=True)
class MergedRun:
    """The records and sessions of several runs, in an order that does not depend on that of the runs. quarantine:
    damaged lines with their places."""

    lines: Sequence[StoredLine]
    sessions: Sequence[Session]
    conflicts: Sequence[Conflict]
    quarantine: Sequence[str]

    def make_files(self) -> dict[str, bytes]:
        """The contents of its folder."""
        text = json.dumps({"sessions": self.sessions}, indent=2, allow_nan=False) + "\n"
        files = {shards.ROWS_FILE: b"".join(line.data for line in self.lines), store.RUN_FILE: text.encode()}
        return files | ({QUARANTINE_FILE: "".join(self.quarantine).encode()} if self.quarantine else {})


def merge(runs: Sequence[Path]) -> MergedRun:
    """Merge runs. Raises `UsageError` for a folder without a run, for records of a newer version, and for runs of
    different suites, plans, machines or versions of torch."""
    sessions: dict[str, Session] = {}
    records: dict[tuple[str, str], StoredLine] = {}  # by session and case
    conflicts: set[Conflict] = set()
    quarantine: set[str] = set()
    for run in runs:
        of_run, damages = _read_lines(run)
        folder = store.find_rows_path(run).parent
        quarantine.update(map(format_damage, damages), _read_quarantine(folder))
        for key, line in of_run.items():
            other = records.get(key, line)
            if other.data != line.data:  # copies of a session that differ
                conflicts.add(Conflict(line.case, line.run_id, (line.run_id,)))
            records[key] = max(line, other, key=lambda x: (x.is_measured, x.data))
        for session in store.read_raw_sessions(folder):
            run_id = str(session.get("run_id"))
            order = [line.digest for line in of_run.values() if line.run_id == run_id]
            session = {store.ORDER_KEY: order, **session}
            sessions[run_id] = max(sessions.get(run_id, session), session, key=_rank_session)
    if unknown := {run_id for run_id, _ in records} - sessions.keys():
        raise UsageError(f"merge: no {store.RUN_FILE} has session {min(unknown)}, so that its machine is unknown")
    ordered = sorted(sessions.values(), key=lambda s: (str(s.get("started")), str(s.get("run_id"))))
    _check_alike(ordered)
    lines, left_out = _choose(records.values(), [str(session.get("run_id")) for session in ordered])
    numbers = store.number_cases(ordered)
    lines.sort(key=lambda line: (numbers.get(line.digest, len(numbers)), line.case))
    return MergedRun(lines, ordered, sorted(conflicts | left_out, key=str), sorted(quarantine))


def write(merged: MergedRun, out: Path) -> bool:
    """Write a merged run to a new folder; False if it has this content already. Raises `UsageError`, before anything is
    written, for a folder with anything else."""
    files = merged.make_files()
    try:
        durable.make_folder(out)
        store.check_no_links(out)
        with lock_folder(out):
            others = sorted(path.name for path in out.iterdir() if not store.is_run_file_name(path))
            stored = [path for path in shards.list_shards(out) if path.name != shards.ROWS_FILE]
            different = [name for name in files if (out / name).exists() and (out / name).read_bytes() != files[name]]
            is_new = not any((out / name).exists() for name in files)
            if wrong := (others if is_new else []) or different or [path.name for path in stored]:
                raise UsageError(f"{out}: not empty, and not what these runs give ({wrong[0]}); choose another --out")
            missing = [name for name in files if not (out / name).exists()]
            for name in missing:
                durable.replace(out / name, files[name])
            return bool(missing)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error.strerror or error}; choose another --out") from error


def _read_lines(run: Path) -> tuple[dict[tuple[str, str], StoredLine], list[shards.Damage]]:
    """The latest record of each case in each session, and the damaged lines."""
    lines: dict[tuple[str, str], StoredLine] = {}
    damages: list[shards.Damage] = []
    for path in shards.list_shards(run):
        for data, record in shards.scan_lines(path):
            if isinstance(record, shards.Damage):
                damages.append(record)
                continue
            row, case = record.row, record_stem(record)
            run_id, digest = str(row.run_id), digest_of(row.case_key)
            lines[run_id, case] = StoredLine(data, run_id, case, digest, name_group(record), row.status)
    return lines, damages


def _read_quarantine(folder: Path) -> list[str]:
    path = folder / QUARANTINE_FILE
    return path.read_text("utf-8", "replace").splitlines(keepends=True) if path.is_file() else []


def _rank_session(session: Session) -> tuple[bool, int, str]:
    """Of two descriptions of a session, the one written last is the larger one."""
    return bool(session.get("finished")), len(session[store.ORDER_KEY]), json.dumps(session, sort_keys=True)


def _check_alike(sessions: Iterable[Session]) -> None:
    """Raise `UsageError` if the sessions cannot be in one folder."""
    first: dict[str, tuple[Any, Any]] = {}
    for session in sessions:
        environment = rename_machine(session).get("environment") or {}
        facts = {"suite": (session.get("suite") or {}).get("name"), PLAN_KEY: session.get(PLAN_KEY)}
        facts |= {name: environment.get(name) for name in SAME_IN_FOLDER}
        for name, value in facts.items():
            before, run_id = first.setdefault(name, (value, session.get("run_id")))
            if before != value:
                message = f"the {name.replace('_', ' ')} of {run_id} is {before or 'none'}, that of"
                message += f" {session.get('run_id')} is {value or 'none'}"
                raise UsageError(f"merge: {message}; such runs are reported together, not merged")


def _choose(lines: Iterable[StoredLine], run_ids: Sequence[str]) -> tuple[list[StoredLine], set[Conflict]]:
    """The record of each case, and the cases of which several sessions have one. run_ids: the latest session last."""
    positions = {run_id: position for position, run_id in enumerate(run_ids)}
    groups: dict[str, dict[str, dict[str, StoredLine]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        groups[line.group][line.run_id][line.case] = line
    best_lines: list[StoredLine] = []
    conflicts: set[Conflict] = set()
    for by_session in groups.values():
        largest = max(by_session, key=lambda run_id: _rank(by_session[run_id].values(), run_id, positions))
        for case in sorted({case for by_case in by_session.values() for case in by_case}):
            of_case = [by_case[case] for by_case in by_session.values() if case in by_case]
            best = max(of_case, key=lambda x: (x.is_measured and x.run_id == largest, _rank([x], x.run_id, positions)))
            best_lines.append(best)
            if len(of_case) > 1:
                conflicts.add(Conflict(case, best.run_id, tuple(sorted(x.run_id for x in of_case if x is not best))))
    return best_lines, conflicts


def _rank(lines: Iterable[StoredLine], run_id: str, positions: Mapping[str, int]) -> tuple[int, int, int, str]:
    """Of two sessions, the one with more successful, then with more measured cases, then the later one is larger."""
    statuses = [line.status for line in lines if line.is_measured]
    return statuses.count("ok"), len(statuses), positions.get(run_id, -1), run_id
