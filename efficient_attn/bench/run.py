"""A run: measure a plan group by group, and store every record at once."""

from __future__ import annotations

import datetime as dt
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from ..engines.local import Method
from ..engines.turns import Turns
from ..errors import UsageError
from ..instruments import integrity
from ..results import checkpoints, durable
from ..results.merging import PLAN_KEY, SAME_IN_FOLDER
from ..results.overrides import OVERRIDES_KEY
from ..results.rows import NO_FAILURE, Record
from ..results.shards import strip_digest
from ..results.store import ORDER_KEY, RunWriter, read_sessions
from .case import Case, group_cases
from .case_config import Group
from .declared_growth import check_growth
from .measuring.conditions import make_engine
from .measuring.parallel import check_jobs, find_chain, is_parallel
from .nodes.cluster_run import Nodes, RepeatedRun
from .nodes.dispatch import Message, Notice, Repeated
from .nodes.unit import CheckpointFile
from .planning.plan_split import PlanPart
from .planning.suite import LoadedSuite
from .session import MeasuringSession, SessionSettings, describe_run, store_record, utc_now
from .task_registry import find_task


class StaleCases(UserWarning):
    """Cases that changed since they were measured, or whose sources did."""


class NodeWarning(UserWarning):
    """A node that joined, was lost, or is not used."""


class NoisyMachine(UserWarning):
    """Conditions at the start of a run that make its measurements unreliable."""


@dataclass
class RunOutcome:
    """The outcome of a run: its folder, and the number of planned cases by status, earlier sessions included."""

    folder: Path
    statuses: Counter[str]
    repairs: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        """The number of cases whose status counts as a failure."""
        return sum(count for status, count in self.statuses.items() if status not in NO_FAILURE)


def default_folder(suite: str, *, now: dt.datetime | None = None) -> Path:
    """A folder that does not exist yet: ``results/local/<suite>-<time>`` under the current one."""
    path = Path("results/local") / f"{suite}-{(now or dt.datetime.now()):%Y%m%d-%H%M%S}"
    candidates = chain([path], (path.with_name(f"{path.name}-{number}") for number in count(2)))
    return next(candidate for candidate in candidates if not candidate.exists())


def run(
    loaded: LoadedSuite,
    cases: Sequence[Case],
    folder: Path,
    *,
    resume: bool = False,
    retry_failed: bool = False,
    overridden: Sequence[str] = (),
    timeout_s: float | None = None,
    memory_bytes: int | None = None,
    start_method: Method | None = None,
    jobs: int = 1,
    turns: Turns | None = None,
    part: PlanPart | None = None,
    nodes: Nodes | None = None,
    progress: Callable[[Record, int, int], Any] = lambda record, done, total: None,
) -> RunOutcome:
    """Measure the cases into a folder. With ``resume``, only those that the folder does not contain.

    retry_failed: also those that failed. overridden: changes of the suite, as text. progress: called with each record,
    the number of finished and of planned cases. timeout_s, memory_bytes: limits of a case, by default the suite's, and
    what the machine has left. jobs: how many trainings run at the same time, at most. A group whose cases are timed
    interleaved is measured as a whole even if some of its rows exist, because speedups are paired; existing rows stay
    unchanged. Settings that a training takes from others which are measured again, such as its learning rate, are
    decided again, and its row is replaced if they differ. turns: with another run. part: of a plan, from which the
    cases come. nodes: that measure instead of this machine. Raises `UsageError` for a plug-in's growth that its own
    work contradicts, for more jobs than cores, and for nodes that do not fit together.
    """
    if nodes is None:
        check_jobs([group for group, _ in group_cases(cases)], jobs, turns)
    integrity.restore()  # functions that a plug-in has replaced here
    check_growth(cases, make_engine(start_method))
    with RunWriter(folder, resume=resume) as writer:
        before = {case.key: writer.statuses.get(case.key, "interrupted") for case in cases}
        missing = {k for k, s in before.items() if s == "interrupted" or (retry_failed and s not in NO_FAILURE)}
        missing |= {key for key in list_dependents(cases, missing) if before[key] in NO_FAILURE}
        by_group = [(group, _select_cases(group, members, missing)) for group, members in group_cases(cases)]
        planned = [(group, members) for group, members in by_group if members]
        if planned:
            _warn_of_stale(writer, missing)
            entry = describe_run(loaded) | {OVERRIDES_KEY: list(overridden)}
            if jobs > 1:
                entry[ORDER_KEY] = [case.digest for case in cases]
            if part:
                entry |= {PLAN_KEY: part.plan, "part": [part.part, part.of], ORDER_KEY: list(part.order)}
            settings = SessionSettings(
                entry=entry,
                timeout_s=timeout_s or loaded.suite.timeout_s,
                memory_bytes=memory_bytes,
                start_method=start_method,
                jobs=jobs,
            )
            if nodes:
                entry.setdefault(ORDER_KEY, [case.digest for case in cases])
                messages = nodes.measure(cases, planned, settings, folder)
            else:
                messages = MeasuringSession(settings, folder, turns or Turns()).run(planned, read_sessions(folder))
            done, repeated = len(cases) - len(missing), RepeatedRun(folder)
            with closing(repeated), closing(messages):
                for message in messages:
                    if not isinstance(message, Record):
                        _receive(writer, message, repeated)
                    elif message.row.case_key in missing:
                        missing.remove(message.row.case_key)
                        done += 1
                        progress(store_record(writer, message), done, len(cases))
        elif (sessions := read_sessions(folder)) and not sessions[-1].get("finished"):
            finished_by = ["efficient-attn", *sys.argv[1:]]  # the interrupted session had measured all that is wanted
            writer.write_session(sessions[-1] | {"finished": utc_now(), "finished_by": finished_by})
        failed = {checkpoints.digest_of(k) for k, status in writer.statuses.items() if checkpoints.is_resumable(status)}
        checkpoints.clear(folder, failed)  # also those of a session that was killed after it had stored a row
        return RunOutcome(folder, Counter(writer.statuses[case.key] for case in cases), tuple(writer.repairs))


def _select_cases(group: Group, members: Sequence[Case], missing: Set[str]) -> list[Case]:
    """The cases of a group that have to run in order to measure the missing ones."""
    selected = [case for case in members if case.key in missing]
    return list(members) if selected and find_task(group.target).work else selected


def list_dependents(cases: Sequence[Case], missing: Collection[str]) -> set[str]:
    """The keys of all cases that follow a missing one in its chain, whose rows depend on it."""
    changed: set[Hashable] = set()
    dependents: set[str] = set()
    if missing:
        for case in cases:
            if is_parallel(case.group):
                chain = find_chain(case)
                if case.key in missing:
                    changed.add(chain)
                elif chain in changed:
                    dependents.add(case.key)
    return dependents


def _warn_of_stale(writer: RunWriter, missing: set[str]) -> None:
    """Warn about cases that are measured again because they, or their sources, changed."""
    before = {strip_digest(key) for key in writer.statuses}
    if n_stale := sum(strip_digest(key) in before and key not in writer.statuses for key in missing):
        cases = "1 case was" if n_stale == 1 else f"{n_stale} cases were"
        message = f"{writer.folder}: {cases} measured from other sources or settings; measured again"
        warnings.warn(message, StaleCases, stacklevel=3)


def _receive(writer: RunWriter, message: Message, repeated: RepeatedRun) -> None:
    """Store what is no record of the run. Raises `UsageError` before a session's first entry if its machine is another
    one than the folder's, whose results must not be mixed; warns of a machine that is not ready."""
    if isinstance(message, Repeated):
        repeated.store(message.record)
    elif isinstance(message, CheckpointFile):
        durable.make_folder(writer.folder / checkpoints.CHECKPOINT_FOLDER)
        durable.replace(writer.folder / checkpoints.CHECKPOINT_FOLDER / message.name, message.content)
    elif isinstance(message, Notice):
        warnings.warn(message.text, NodeWarning, stacklevel=3)
    elif isinstance(message, dict):
        if message["run_id"] not in {session.get("run_id") for session in read_sessions(writer.folder)}:
            _check_same_machine(writer.folder, message["environment"])
        writer.write_session(message)
        repeated.add_entry(message)
        if "readiness" in message and not message["finished"] and (warning := message["readiness"]["warning"]):
            at = f"{message['node']}: " if "node" in message else ""
            warnings.warn(f"{at}not ready to measure: {warning}", NoisyMachine, stacklevel=3)


def _check_same_machine(folder: Path, now: dict[str, Any]) -> None:
    """Refuse to resume a run of another machine, because a folder must not mix results of two machines."""
    for session in read_sessions(folder):
        before = session.get("environment", {})
        for name in SAME_IN_FOLDER:
            if before.get(name) not in (None, now.get(name)):
                older = ", by a version that did not record which machine it was"
                fact = f"{before[name]}{older if name == 'machine' and 'identity' not in before else ''}"
                message = f"{folder}: measured with {name.replace('_', ' ')} {fact}"
                raise UsageError(f"{message}; here it is {now.get(name) or 'none'}; choose another --out")


integrity.record_integrity()
