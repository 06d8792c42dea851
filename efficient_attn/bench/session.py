"""A session of a run: the entry in ``run.json``, and the conditions under which one machine measures."""

from __future__ import annotations

import datetime as dt
import secrets
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

from ..engines.local import Method
from ..engines.turns import Turns
from ..errors import UNCHANGED, UsageError
from ..instruments.allocator import describe_settings
from ..instruments.disturbance import Disturbance
from ..instruments.environment import collect_environment, describe_absence, find_available_memory, read_load_average
from ..instruments.environment.software import describe_repository
from ..results import checkpoints
from ..results.rows import Record
from ..results.store import RunWriter
from .case import PROTOCOL
from .case_config import Group
from .measuring import kernel_choices
from .measuring.conditions import Conditions, make_engine
from .measuring.parallel import PlannedGroup, measure_groups
from .measuring.plausibility import list_rooflines, measure_roofline
from .planning.experimental_design import list_sections
from .planning.suite import LoadedSuite
from .readiness import check_machine
from .task_registry import find_task

MEMORY_SHARE = 0.9  # default memory limit of a worker, relative to the available memory

Entry: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """What a session needs to know, which may be sent to another machine. entry: what its entry begins with.
    timeout_s, memory_bytes: limits of a case, by default what the machine has left. jobs: trainings at the same time,
    at most."""

    entry: Mapping[str, Any]
    timeout_s: float
    memory_bytes: int | None = None
    start_method: Method | None = None
    jobs: int = 1


def describe_run(loaded: LoadedSuite) -> Entry:
    """What the entries of all sessions of a run have in common."""
    targets = dict.fromkeys(task_keys.target for part in loaded.task_keys for task_keys in part)
    of_tasks = [section for target in targets for section in find_task(target).sections]
    sections = [*of_tasks, *list_sections(loaded.name, loaded.suite)]
    return {
        "suite": {"name": loaded.name, "title": loaded.suite.title, "baseline": loaded.suite.baseline},
        "suite_text": loaded.text,
        "command": ["efficient-attn", *sys.argv[1:]],
        "version": version("efficient-attn"),
        "protocol": PROTOCOL,
        "repository": describe_repository(Path.cwd()),
        "sections": [section.as_json() for section in sections],  # a report may not have the plug-ins
    }


@dataclass
class MeasuringSession:
    """Measures groups on this machine. folder: of checkpoints. entry: what ``run.json`` says of the session."""

    settings: SessionSettings
    folder: Path
    turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        self.engine = make_engine(self.settings.start_method)
        self.started = time.perf_counter()
        self.conditions = Conditions(engine=self.engine)
        name = self.settings.entry["suite"]["name"]
        self.entry: Entry = {
            "run_id": f"{name}-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            **self.settings.entry,
            "started": utc_now(),
            "finished": None,
            "start_method": self.engine.method,
            "allocator": describe_settings() if self.engine.method != "inline" else {"left alone": "no workers"},
            "environment": collect_environment(),
            "jobs": self.settings.jobs,
        }

    def run(self, planned: Sequence[PlannedGroup], earlier: Sequence[Entry]) -> Generator[Entry | Record, None, None]:
        """The whole session: its records as they come, and its entry whenever that has changed. earlier: entries of the
        folder, whose choices of kernels are kept."""
        yield self.entry
        self.begin([group for group, _ in planned], earlier)
        yield self.entry
        yield from self.measure(planned)
        self.turns.start_group()
        self.end()
        yield self.entry

    def begin(self, planned: Sequence[Group], earlier: Sequence[Entry]) -> None:
        """Measure the machine, and fix the conditions of measuring."""
        available = find_available_memory()
        allowed = None if available is None else int(MEMORY_SHARE * available)
        self.conditions = Conditions(
            timeout_s=self.settings.timeout_s,
            memory_bytes=self.settings.memory_bytes or allowed,
            available_bytes=allowed,
            gpu_bytes=self.settings.memory_bytes,
            engine=self.engine,
            choices=self._autotune(planned, earlier),
            folder=self.folder,
            turns=self.turns,
        )
        self.entry["limits"] = {
            "timeout_s": self.conditions.timeout_s,
            "memory_bytes": self.conditions.memory_bytes,
            "memory_is_enforced": sys.platform == "linux" and self.engine.method != "inline",
        }
        self.entry["seed"] = planned[0].sampling.seed
        devices = sorted({group.config.device for group in planned})
        self.entry["checks"] = [_inspect(device, planned, self.conditions) for device in devices]
        self.entry["readiness"] = self._check_machine(planned)

    def _autotune(self, planned: Sequence[Group], earlier: Sequence[Entry]) -> kernel_choices.Choices:
        """The timings by which kernels are selected, in this session and in later ones of its folder."""
        threads = dict.fromkeys(group.config.threads for group in planned if group.config.device == "cpu")
        if not threads:
            return kernel_choices.read_earlier(earlier)
        choices = kernel_choices.autotune(self.engine, threads, earlier)
        self.entry["choices"] = kernel_choices.choices_as_json(choices)
        return choices

    def _check_machine(self, planned: Sequence[Group]) -> dict[str, Any]:
        """Whether the machine is ready; ``warning`` says what makes measurements unreliable."""
        default = self.entry["environment"]["threads_default"]
        threads = max((c.config.threads or default for c in planned if c.config.device == "cpu"), default=None)
        disturbance = next((Disturbance(**check["seen"]) for check in self.entry["checks"] if "seen" in check), None)
        return check_machine(disturbance, threads).as_json()

    def measure(self, planned: Sequence[PlannedGroup]) -> Iterator[Record]:
        """One record for every case."""
        for record in measure_groups(planned, self.conditions, self.settings.jobs):
            record.row.run_id, record.row.machine = self.entry["run_id"], self.entry["environment"]["machine"]
            yield record

    def end(self) -> None:
        """Measure the machine again, and complete the entry."""
        account = {name: getattr(self.engine, name) for name in ("starts", "starting_s", "working_s")}
        account["wall_s"] = time.perf_counter() - self.started
        self.entry["checks"] = [_inspect_again(check, self.conditions) for check in self.entry["checks"]]
        if self.conditions.choices:  # with those of first calls on a GPU
            self.entry["choices"] = kernel_choices.choices_as_json(self.conditions.choices)
        self.entry |= {"finished": utc_now(), "account": account, "load_after": read_load_average()}


def store_record(writer: RunWriter, record: Record) -> Record:
    """Store a record; returns the one that was stored. That of a case whose earlier row stays is not."""
    if record.row.status == "skipped" and record.row.reason == UNCHANGED:
        return record
    try:
        writer.write(record)
    except UsageError:
        raise
    except ValueError as error:  # a measured value that no reader would accept: the case failed, not the run
        record = record.as_failure(f"its row cannot be stored: {error}")
        writer.write(record)
    if not checkpoints.is_resumable(record.row.status):
        checkpoints.clear(writer.folder, digest=checkpoints.digest_of(record.row.case_key))
    return record


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


def utc_now() -> str:
    """The time of a session's beginning or end."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
