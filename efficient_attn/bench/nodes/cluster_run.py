"""A run's part that is about its nodes: what they are told, and where results of repeated groups are stored."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...engines.cluster import Cluster
from ...registry import plugins
from ...results import checkpoints
from ...results.rows import Record
from ...results.shards import list_shards
from ...results.store import RunWriter, read, read_sessions
from ..case import Case
from ..data_files import CarriedFiles
from ..measuring.parallel import PlannedGroup
from ..session import Entry, SessionSettings, store_record
from .dispatch import Dispatcher, Message
from .unit import CheckpointFile, make_units

REPEATED_FOLDER = "repeated"  # in a run's folder: a run of the groups that a second node has measured
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # nodes get ours, as clusters set their own


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The nodes of a run. machine: the only class of machines. answer_s: in which a node has to answer."""

    cluster: Cluster
    machine: str | None = None
    answer_s: float = 60.0

    def measure(
        self, cases: Sequence[Case], planned: Sequence[PlannedGroup], settings: SessionSettings, folder: Path
    ) -> Generator[Message, None, None]:
        """Measure the planned groups of a plan's cases."""
        stored = [
            CheckpointFile(path.name, path.read_bytes())
            for path in checkpoints.list_files(folder)
            if path.suffix == ".pt"
        ]
        earlier = read_sessions(folder)
        machines = [session.get("environment", {}).get("machine") for session in earlier]
        yield from Dispatcher(
            self.cluster,
            make_units(cases, planned, settings.jobs),
            settings,
            CarriedFiles.collect(plugins(), cases),
            variables={name: os.environ.get(name) for name in VARIABLES},
            records=read(folder),
            checkpoints=stored,
            earlier=earlier,
            machine=self.machine or next(filter(None, machines), None),  # a folder has results of one class
            answer_s=self.answer_s,
        ).run()


@dataclass
class RepeatedRun:
    """The groups that a second node has measured, as a run of its own, so that ``compare`` shows how well results are
    reproduced. folder: of the run."""

    folder: Path
    _entries: dict[str, Entry] = field(default_factory=dict)
    _writer: RunWriter | None = None

    def add_entry(self, entry: Entry) -> None:
        """Keep a session's entry, for the case that one of its records follows."""
        self._entries[entry["run_id"]] = entry

    def store(self, record: Record) -> None:
        """Store a record."""
        folder = self.folder / REPEATED_FOLDER
        if self._writer is None:
            self._writer = RunWriter(folder, resume=bool(folder.is_dir() and list_shards(folder)))
        store_record(self._writer, record)

    def close(self) -> None:
        """Store the entries of the sessions that have records."""
        if self._writer is not None:
            used = {record.row.run_id for record in read(self._writer.folder)}
            for run_id, entry in self._entries.items():
                if run_id in used:
                    self._writer.write_session(entry)
            self._writer.close()
