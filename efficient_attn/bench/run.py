"""A run: measure a plan group by group, and store every record at once."""

from __future__ import annotations

import datetime as dt
import secrets
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from typing import Any

from ..engines.local import Method
from ..engines.turns import Turns
from ..errors import UsageError
from ..instruments import integrity
from ..instruments.allocator import describe_settings
from ..instruments.disturbance import Disturbance
from ..instruments.environment import collect_environment, describe_absence, find_available_memory, read_load_average
from ..instruments.environment.software import describe_repository
from ..results import checkpoints
from ..results.merging import PLAN_KEY, SAME_IN_FOLDER
from ..results.overrides import OVERRIDES_KEY
from ..results.rows import NO_FAILURE, Record
from ..results.shards import strip_digest
from ..results.store import ORDER_KEY, RunWriter, read_sessions
from .case import PROTOCOL, Case, group_cases
from .case_config import Group
from .declared_growth import check_growth
from .measuring import kernel_choices
from .measuring.conditions import Conditions, make_engine
from .measuring.parallel import check_jobs, measure_groups
from .measuring.plausibility import list_rooflines, measure_roofline
from .planning.experimental_design import list_sections
from .planning.plan_split import PlanPart
from .planning.suite import LoadedSuite
from .readiness import check_machine
from .task_registry import find_task

MEMORY_SHARE = 0.9  # default memory limit of a worker, relative to the available memory


class StaleCases(UserWarning):
    """Cases that changed since they were measured, or whose sources did."""


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
    progress: Callable[[Record, int, int], Any] = lambda record, done, total: None,
) -> RunOutcome:
    """Measure the cases into a folder. With ``resume``, only those that the folder does not contain.

    retry_failed: also those that failed. overridden: changes of the suite, as text. progress: called with each record,
    the number of finished and of planned cases. timeout_s, memory_bytes: limits of a case, by default the suite's, and
    what the machine has left. jobs: how many trainings run at the same time, at most. A group whose cases are timed
    interleaved is measured as a whole even if some of its rows exist, because speedups are paired; existing rows stay
    unchanged. turns: with another run. part: of a plan, from which the cases come. Raises `UsageError` for a plug-in's
    growth that its own work contradicts, and for more jobs than cores.
    """
    check_jobs([group for group, _ in group_cases(cases)], jobs, turns)
    integrity.restore()  # functions that a plug-in has replaced here
    check_growth(cases, make_engine(start_method))
    with RunWriter(folder, resume=resume) as writer:
        before = {case.key: writer.statuses.get(case.key, "interrupted") for case in cases}
        missing = {k for k, s in before.items() if s == "interrupted" or (retry_failed and s not in NO_FAILURE)}
        by_group = [(group, _select_cases(group, members, missing)) for group, members in group_cases(cases)]
        planned = [(group, members) for group, members in by_group if members]
        if planned:
            _warn_of_stale(writer, missing)
            session = _Session(loaded, writer, start_method, turns or Turns())
            session.entry |= {OVERRIDES_KEY: list(overridden), "jobs": jobs}
            if jobs > 1:
                session.entry[ORDER_KEY] = [case.digest for case in cases]
            if part:
                session.entry |= {PLAN_KEY: part.plan, "part": [part.part, part.of], ORDER_KEY: list(part.order)}
            conditions = session.begin([group for group, _ in planned], timeout_s, memory_bytes)
            done = len(cases) - len(missing)
            with closing(measure_groups(planned, conditions, jobs)) as records:
                for record in records:
                    if record.row.case_key in missing:
                        session.add(record)
                        done += 1
                        progress(record, done, len(cases))
            conditions.turns.start_group()
            session.end(conditions)
        elif (sessions := read_sessions(folder)) and not sessions[-1].get("finished"):
            # the interrupted session had measured all that is wanted now
            writer.write_session(sessions[-1] | {"finished": _now(), "finished_by": ["efficient-attn", *sys.argv[1:]]})
        failed = {checkpoints.digest_of(k) for k, status in writer.statuses.items() if checkpoints.is_resumable(status)}
        checkpoints.clear(folder, failed)  # also those of a session that was killed after it had stored a row
        return RunOutcome(folder, Counter(writer.statuses[case.key] for case in cases), tuple(writer.repairs))


def _select_cases(group: Group, members: Sequence[Case], missing: Set[str]) -> list[Case]:
    """The cases of a group that have to run in order to measure the missing ones."""
    selected = [case for case in members if case.key in missing]
    return list(members) if selected and find_task(group.target).work else selected


def _warn_of_stale(writer: RunWriter, missing: set[str]) -> None:
    """Warn about cases that are measured again because they, or their sources, changed."""
    before = {strip_digest(key) for key in writer.statuses}
    if n_stale := sum(strip_digest(key) in before and key not in writer.statuses for key in missing):
        cases = "1 case was" if n_stale == 1 else f"{n_stale} cases were"
        message = f"{writer.folder}: {cases} measured from other sources or settings; measured again"
        warnings.warn(message, StaleCases, stacklevel=3)


class _Session:
    """A session of a run: its entry in ``run.json``, from beginning to end."""

    def __init__(self, loaded: LoadedSuite, writer: RunWriter, method: Method | None, turns: Turns) -> None:
        self.writer, self.turns = writer, turns
        self.engine = make_engine(method)
        self.started = time.perf_counter()
        targets = dict.fromkeys(task_keys.target for part in loaded.task_keys for task_keys in part)
        of_tasks = [section for target in targets for section in find_task(target).sections]
        sections = [*of_tasks, *list_sections(loaded.name, loaded.suite)]
        self.entry: dict[str, Any] = {
            "run_id": f"{loaded.name}-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            "suite": {"name": loaded.name, "title": loaded.suite.title, "baseline": loaded.suite.baseline},
            "suite_text": loaded.text,
            "command": ["efficient-attn", *sys.argv[1:]],
            "version": version("efficient-attn"),
            "protocol": PROTOCOL,
            "started": _now(),
            "finished": None,
            "start_method": self.engine.method,
            "allocator": describe_settings() if self.engine.method != "inline" else {"left alone": "no workers"},
            "environment": collect_environment(),
            "repository": describe_repository(Path.cwd()),
            "sections": [section.as_json() for section in sections],  # a report may not have the plug-ins
        }
        self._timeout_s = loaded.suite.timeout_s

    def begin(self, planned: Sequence[Group], timeout_s: float | None, memory_bytes: int | None) -> Conditions:
        """Record what will run, measure the machine, and fix the conditions of measuring."""
        _check_same_machine(self.writer.folder, self.entry["environment"])
        self.writer.write_session(self.entry)
        available = find_available_memory()
        allowed = None if available is None else int(MEMORY_SHARE * available)
        conditions = Conditions(
            timeout_s=timeout_s or self._timeout_s,
            memory_bytes=memory_bytes or allowed,
            available_bytes=allowed,
            engine=self.engine,
            choices=self._autotune(planned),
            folder=self.writer.folder,
            turns=self.turns,
        )
        self.entry["limits"] = {
            "timeout_s": conditions.timeout_s,
            "memory_bytes": conditions.memory_bytes,
            "memory_is_enforced": sys.platform == "linux" and self.engine.method != "inline",
        }
        self.entry["seed"] = planned[0].sampling.seed
        devices = sorted({group.config.device for group in planned})
        self.entry["checks"] = [_inspect(device, planned, conditions) for device in devices]
        self._check_machine(planned)
        self.writer.write_session(self.entry)
        return conditions

    def _autotune(self, planned: Sequence[Group]) -> kernel_choices.Choices:
        """The timings by which kernels are selected, in this session and in later ones of its folder."""
        threads = dict.fromkeys(group.config.threads for group in planned if group.config.device == "cpu")
        if not threads:
            return {}
        choices = kernel_choices.autotune(self.engine, threads, read_sessions(self.writer.folder))
        self.entry["choices"] = kernel_choices.choices_as_json(choices)
        return choices

    def _check_machine(self, planned: Sequence[Group]) -> None:
        """Warn before anything is measured if the machine is not ready."""
        default = self.entry["environment"]["threads_default"]
        threads = max((c.config.threads or default for c in planned if c.config.device == "cpu"), default=None)
        disturbance = next((Disturbance(**check["seen"]) for check in self.entry["checks"] if "seen" in check), None)
        diagnosis = check_machine(disturbance, threads)
        self.entry["readiness"] = diagnosis.as_json()
        if diagnosis.warning:
            warnings.warn(f"not ready to measure: {diagnosis.warning}", NoisyMachine, stacklevel=4)

    def add(self, record: Record) -> None:
        record.row.run_id, record.row.machine = self.entry["run_id"], self.entry["environment"]["machine"]
        try:
            self.writer.write(record)
        except UsageError:
            raise
        except ValueError as error:  # a measured value that no reader would accept: the case failed, not the run
            record = record.as_failure(f"its row cannot be stored: {error}")
            self.writer.write(record)
        if not checkpoints.is_resumable(record.row.status):
            checkpoints.clear(self.writer.folder, digest=checkpoints.digest_of(record.row.case_key))

    def end(self, conditions: Conditions) -> None:
        account = {name: getattr(self.engine, name) for name in ("starts", "starting_s", "working_s")}
        account["wall_s"] = time.perf_counter() - self.started
        self.entry["checks"] = [_inspect_again(check, conditions) for check in self.entry["checks"]]
        self.entry |= {"finished": _now(), "account": account, "load_after": read_load_average()}
        self.writer.write_session(self.entry)


def _inspect(device: str, planned: Sequence[Group], conditions: Conditions) -> dict[str, Any]:
    """Check the memory counter and measure the machine's highest rates, which are stored in the conditions."""
    if reason := describe_absence(device):
        return {"device": device, "skipped": reason}
    configs = [group.config for group in planned if group.config.device == device and group.config.mode]
    settings = sorted({(config.dtype, config.threads) for config in configs}, key=str)
    facts = measure_roofline(device, settings, conditions, "before")
    return {"device": device} | facts | {"ceilings": list_rooflines(device, conditions)}


def _inspect_again(check: dict[str, Any], conditions: Conditions) -> dict[str, Any]:
    """Measure the machine's highest rates again, after the run."""
    device = check["device"]
    settings = [(dtype, threads) for on, dtype, threads in conditions.inspections if on == device]
    if not settings:
        return check
    facts = measure_roofline(device, settings, conditions, "after")
    facts.pop("seen", None)  # the disturbance before the run is reported
    return check | facts | {"ceilings": list_rooflines(device, conditions)}


def _check_same_machine(folder: Path, now: dict[str, Any]) -> None:
    """Refuse to resume a run of another machine, because a folder must not mix results of two machines."""
    for session in read_sessions(folder):
        before = session.get("environment", {})
        for name in SAME_IN_FOLDER:
            if before.get(name) not in (None, now[name]):
                older = "" if "identity" in before else ", by a version that did not record which machine it was"
                message = f"{folder}: measured with {name} {before[name]}{older if name == 'machine' else ''}"
                raise UsageError(f"{message}; here it is {now[name]}; choose another --out")


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


integrity.record_integrity()
