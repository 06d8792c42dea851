"""Worker jobs: prepare a group's cases, measure rounds, and measure the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ...engines.job import StageBoard
from ...engines.worker import limit_memory
from ...errors import UnsupportedError
from ...instruments import integrity
from ...instruments.disturbance import DisturbanceWatch
from ...instruments.energy import find_meter, measure_joules_per_call
from ...instruments.environment.gpu import read_sensors
from ...instruments.global_state import GlobalState, GlobalStateChanged
from ...instruments.memory import verify_memory_counter
from ...instruments.roofline import Roofline, measure_roofline_rates
from ...instruments.timing import RoundPlan, TooSlow, run_rounds
from ...results.rows import Record, Row, Status
from ..case import Case
from ..case_config import Group
from ..task import Task
from ..task_registry import find_task
from . import kernel_choices, scratch
from .output_comparison import InvalidResult
from .prepared_case import EVALUATING, MAKING_INPUTS, TIMING, PreparedCase
from .samples import make_timed
from .workload import Workload


@dataclass(frozen=True)
class CaseResult:
    """A worker's message about one case, by its index in the job, with the seconds that it took."""

    case: int
    outcome: PreparedCase | Record
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PrepareCases:
    """Prepare each case for timing, or make the record that explains why not. Sends a `CaseResult` for each."""

    group: Group
    cases: tuple[Case, ...]
    timeout_s: float
    memory_bytes: int | None
    choices: kernel_choices.Choices = field(default_factory=dict)
    folder: Path | None = None

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Prepare the cases one after another; sends each one's plan or the reason why it is not measured."""
        _set_threads(self.group)
        kernel_choices.apply_choices(self.choices)
        scratch.set_folder(self.folder)
        task = find_task(self.group.target)
        for place, case in enumerate(self.cases):
            start = time.perf_counter()
            overdue = time.monotonic() + self.timeout_s

            def at(stage: int, seconds: float | None = None, *, place: int = place, overdue: float = overdue) -> None:
                left = overdue - time.monotonic()
                board.set_stage(place, stage, left if seconds is None else min(seconds, left))

            at(MAKING_INPUTS)
            limit_memory(self.memory_bytes)
            outcome = self._evaluate(task, replace(case, keys_model=task.keys), at)
            send(CaseResult(place, outcome, time.perf_counter() - start))

    def _evaluate(self, task: Task, case: Case, at: Callable[..., None]) -> PreparedCase | Record:
        row = case.row()
        row.threads = torch.get_num_threads()
        try:
            at(EVALUATING)
            outcome = task.judge(case, row, at)
            if undeclared := sorted(name for name in outcome.row.extra if not task.declares(name)):
                raise ValueError(f"the task {task.name} declares no column {undeclared[0]!r}")
        except Exception as error:
            return end_failed(row, error)
        try:
            Record(outcome.row, outcome.samples).to_line()
        except (TypeError, ValueError) as error:  # what cannot be stored fails this case, not the run
            return end_failed(case.row(), error)
        return outcome


@dataclass(frozen=True)
class RoundResult:
    """One round of a process run, by the case's index in the job."""

    samples: Mapping[int, list[float]]
    waited: Mapping[int, int]
    failed: Mapping[int, tuple[Status, str]]


@dataclass(frozen=True)
class ProcessRunEnd:
    """The end of a process run: reasons why its times may be disturbed, and the observed disturbance."""

    disturbance: str | None
    observations: dict[str, Any]
    graph_breaks: Mapping[int, int]
    energy_j: Mapping[int, float | None]


@dataclass(frozen=True, kw_only=True)
class MeasureRounds:
    """Measure some rounds of prepared cases together. Sends a `RoundResult` for each round, then `ProcessRunEnd`."""

    group: Group
    cases: tuple[Case, ...]
    sampling_plans: tuple[RoundPlan, ...]
    rounds: tuple[int, ...]
    seed: int
    timeout_s: tuple[float, ...]
    memory_bytes: int | None
    energy: bool  # measured too, where the device has a counter
    choices: kernel_choices.Choices = field(default_factory=dict)

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Measure rounds of all cases, interleaved; sends samples as they come."""
        threads, device = _set_threads(self.group), self.group.config.device
        kernel_choices.apply_choices(self.choices)
        task = find_task(self.group.target)
        make = task.work
        assert make is not None  # only timed cases take part
        limit_memory(self.memory_bytes)
        works: list[Workload] = []
        for place, case in enumerate(self.cases):
            board.set_stage(place, MAKING_INPUTS, self.timeout_s[place])
            works.append(make(replace(case, keys_model=task.keys)))
            works[-1].warm()
        before, watch = GlobalState.capture(), DisturbanceWatch()
        rounds = run_rounds(
            {str(i): make_timed(work, seed=self.seed) for i, work in enumerate(works)},
            {str(i): turn for i, turn in enumerate(self.sampling_plans)},
            {str(i): count for i, count in enumerate(self.rounds)},
            seed=self.seed,
            device=device,
            single_thread=threads == 1 and device == "cpu",
            on_turn=lambda name: board.set_stage(int(name), TIMING, self.timeout_s[int(name)]),
            after_sample=lambda: _check_global_state(before),
        )
        for r in rounds:
            ends = {int(n): explain_failure(e) for n, e in r.errors.items()}
            send(RoundResult(_by_index(r.samples), _by_index(r.disturbed), ends))
        disturbance, waits = (
            watch.read_interval(),
            threads if device == "cpu" else None,
        )  # for a GPU a thread may well wait
        observations = asdict(disturbance) | (
            {"gpu": {n: str(v) for n, v in read_sensors().items()}} if device == "cuda" else {}
        )
        send(
            ProcessRunEnd(
                disturbance.describe(waits),
                observations,
                {i: w.graph_breaks for i, w in enumerate(works)},
                self._energy(works),
            )
        )

    def _energy(self, works: Sequence[Workload]) -> dict[int, float | None]:
        read = find_meter(self.group.config.device) if self.energy else None
        if read is None:
            return {}
        calls = [turn.cost.calls for turn in self.sampling_plans]
        return {
            i: measure_joules_per_call(make_timed(w, seed=self.seed), calls[i], read, device=self.group.config.device)
            for i, w in enumerate(works)
        }


@dataclass(frozen=True, kw_only=True)
class InspectMachine:
    """Measure the machine's highest rates. canary: also check the memory counter.

    Sends the counted bytes, a roofline for each setting, and the disturbance meanwhile.
    """

    device: str
    settings: tuple[tuple[str, int | None], ...]  # dtype and threads
    limit_s: float
    canary: bool = True

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Measure the machine's rates for each dtype and number of threads."""
        board.set_stage(0, MAKING_INPUTS, self.limit_s)
        if self.canary:
            send(verify_memory_counter(self.device))
        default, watch = _default_threads(), DisturbanceWatch()
        for dtype, threads in self.settings:
            roofline: Roofline = measure_roofline_rates(self.device, dtype, threads or default)
            send((dtype, threads, roofline))
        send(watch.read_interval())


def _by_index(by_name: Mapping[str, Any]) -> dict[int, Any]:
    return {int(name): value for name, value in by_name.items()}


def _set_threads(group: Group) -> int:
    default = (
        _default_threads()
    )  # read first: where jobs share a process, a job's settings must not become the next one's default
    torch.set_num_threads(group.config.threads or default)
    return torch.get_num_threads()


@cache
def _default_threads() -> int:
    return torch.get_num_threads()


def _check_global_state(before: GlobalState) -> None:
    if reason := before.describe_change():
        before.restore()
        raise GlobalStateChanged(reason)


# -- how a case fails ----------------------------------------------------------------------------------------------


def explain_failure(error: BaseException) -> tuple[Status, str]:
    """The status and the reason of a case that raised."""
    if isinstance(error, UnsupportedError):
        return "unsupported", str(error)
    if isinstance(error, InvalidResult | GlobalStateChanged):
        return "invalid", str(error)
    if isinstance(error, TooSlow):
        return "timeout", str(error)
    # torch reports a failed CPU allocation as a plain RuntimeError
    unnamed = isinstance(error, RuntimeError) and ("not enough memory" in str(error) or "can't allocate" in str(error))
    out_of_memory = unnamed or isinstance(error, MemoryError | torch.OutOfMemoryError)
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return "oom" if out_of_memory else "error", text


def end_failed(row: Row, error: BaseException) -> Record:
    """The record of a case that raised an exception, with the values that its task added."""
    row.status, row.reason = explain_failure(error)
    row.extra = {}
    if row.device == "cuda" and row.status == "oom":
        torch.cuda.empty_cache()
    return Record(row)


integrity.record_integrity()  # every job imports this module before any plug-in: records what must not change
