"""What runs on a node: one session, which measures the units that it is given.

This module imports torch only when it is called, after the variables that torch reads have been set.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ...instruments.search_path import set_variables

if TYPE_CHECKING:
    from ...results.rows import Record
    from ..case import Case
    from ..case_config import Group
    from ..data_files import CarriedFiles
    from ..session import Entry, SessionSettings
    from .unit import CheckpointFile, Unit

FOLDER = "run"  # of a session, in a node's folder


@dataclass(frozen=True, kw_only=True)
class NodeTask:
    """What a node is told. name: of its folder. groups: one of each device, dtype and number of threads, for measuring
    the machine. earlier: entries whose choices of kernels are kept."""

    name: str
    settings: SessionSettings
    files: CarriedFiles
    groups: Sequence[Group]
    earlier: Sequence[Entry]


@dataclass(frozen=True)
class Needed:
    """What cases of a unit may read: records of others, and checkpoints."""

    records: Sequence[Record] = ()
    files: Sequence[CheckpointFile] = ()


class NodeProgram:
    """Measures units, one at a time, and is asked for news meanwhile, by another thread."""

    def __init__(self) -> None:
        self._folder = Path()
        self._sent: dict[str, float] = {}
        self._lock = threading.Lock()
        self._verified: set[tuple[object, ...]] = set()  # mechanisms whose sources are those of the driver

    def describe(self, variables: Mapping[str, str | None]) -> dict[str, Any]:
        """Facts by which nodes are compared. variables: of the environment, set or removed before torch reads them."""
        set_variables(variables)
        with suppress(OSError):  # Ray lowers the priority of its workers, which only some users may raise
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        # our worker processes would otherwise run Ray's main module first, which takes half a second each
        vars(sys.modules["__main__"]).pop("__file__", None)
        from importlib.metadata import version

        from ...instruments.environment import collect_environment
        from ..sources import digest_package

        facts = {"version": version("efficient-attn"), "sources": digest_package(), "time_s": time.time()}
        return facts | {"environment": collect_environment(), "niceness": os.nice(0)}

    def begin(self, task: NodeTask) -> Entry:
        """Unpack files, import plug-ins, and measure this machine. Returns the session's entry."""
        from ...engines.worker import load_watched_plugin
        from ...instruments import integrity
        from ...results.store import RunWriter
        from ..measuring.parallel import check_jobs
        from ..session import MeasuringSession

        integrity.record_integrity()  # before plug-ins are imported
        self._folder = Path(tempfile.gettempdir(), task.name)
        shutil.rmtree(self._folder, ignore_errors=True)  # of a session here that was lost
        files = self._folder / "files"
        self._folder.mkdir(mode=0o700)
        files.mkdir()
        task.files.unpack(files)
        for plugin in task.files.plugins:
            load_watched_plugin(plugin)
        integrity.restore()
        if task.settings.jobs > 1:
            check_jobs(task.groups, task.settings.jobs)
        self._writer = RunWriter(self._folder / FOLDER)
        self._session = MeasuringSession(task.settings, self._writer.folder)
        self._session.begin(task.groups, task.earlier)
        return self._session.entry

    def measure(self, unit: Unit, needed: Needed) -> Iterator[Record]:
        """A record for every case. Raises `UsageError` if the sources of a case's mechanism are others here."""
        from ...results import checkpoints, durable
        from ..planning.case_factory import make_case
        from ..session import store_record

        for case in unit.cases:
            name = case.group.target, case.variant, case.fingerprint
            if name not in self._verified:
                here = make_case(case.group, case.variant, case.kv_heads, case.budget)
                if here.fingerprint != case.fingerprint:
                    remedy = "install the same version there"
                    raise UsageError(f"{case.variant}: its sources are others on this node; {remedy}")
                self._verified.add(name)
        durable.make_folder(self._writer.folder / checkpoints.CHECKPOINT_FOLDER)
        for file in needed.files:
            durable.replace(self._writer.folder / checkpoints.CHECKPOINT_FOLDER / file.name, file.content)
        for record in needed.records:
            self._writer.write(record)
        planned = [(group, [_complete(case) for case in members]) for group, members in unit.groups]
        for record in self._session.measure(planned):
            yield store_record(self._writer, record)  # for cases that read it

    def collect_checkpoints(self) -> list[CheckpointFile]:
        """Checkpoints and models that have changed since the last call, which also shows that the node answers."""
        from ...results import checkpoints
        from .unit import CheckpointFile

        changed: list[CheckpointFile] = []
        with self._lock:
            for path in checkpoints.list_files(self._writer.folder):
                try:
                    written = path.stat().st_mtime
                    if path.suffix == ".pt" and self._sent.get(path.name) != written:
                        changed.append(CheckpointFile(path.name, path.read_bytes()))
                        self._sent[path.name] = written
                except FileNotFoundError:  # its case has ended
                    continue
        return changed

    def end(self) -> Entry:
        """Measure the machine again, and remove the folder. Returns the completed entry."""
        self._session.end()
        self._writer.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return self._session.entry


def _complete(case: Case) -> Case:
    """A case with the class of its keys, which is not sent."""
    from ..task_registry import find_task

    return replace(case, keys_model=find_task(case.group.target).keys)
