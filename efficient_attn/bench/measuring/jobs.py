"""Worker jobs: prepare a group's cases, measure rounds, and measure the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
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
from ...instruments.roofline import measure_roofline_rates
from ...instruments.timing import RoundPlan, TooSlow, run_rounds
from ...results.rows import Record, Row, Status
from ..case import Case
from ..case_config import Group
from ..task import Task
from ..task_registry import find_task
from . import kernel_choices, scratch
from .prepared_case import EVALUATING, MAKING_INPUTS, TIMING, PreparedCase
from .row_errors import InvalidResult
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
    """Prepare each case for timing, or make its record if it fails or is not timed. Sends a `CaseResult` for each."""

    group: Group
    cases: tuple[Case, ...]
    timeout_s: float
    memory_bytes: int | None
    choices: kernel_choices.Choices = field(default_factory=dict)
    folder: Path | None = None

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Prepare the cases one after another."""
        _set_threads(self.group)
        kernel_choices.apply_choices(self.choices)
        scratch.set_folder(self.folder)
        task = find_task(self.group.target)
        for index, case in enumerate(self.cases):
            start = time.perf_counter()
            report_stage = partial(self._report_stage, board, index, time.monotonic() + self.timeout_s)
            report_stage(MAKING_INPUTS)
            limit_memory(self.memory_bytes)
            outcome = self._evaluate(task, replace(case, keys_model=task.keys), report_stage)
            send(CaseResult(index, outcome, time.perf_counter() - start))

    @staticmethod
    def _report_stage(board: StageBoard, case: int, deadline: float, stage: int, limit_s: float | None = None) -> None:
        left = deadline - time.monotonic()
        board.set_stage(case, stage, left if limit_s is None else min(limit_s, left))

    @staticmethod
    def _evaluate(task: Task, case: Case, report_stage: Callable[..., None]) -> PreparedCase | Record:
        row = case.row()
        row.threads = torch.get_num_threads()
        try:
            report_stage(EVALUATING)
            outcome = task.judge(case, row, report_stage)
            if undeclared := sorted(name for name in outcome.row.extra if not task.declares(name)):
                raise ValueError(f"the task {task.name} declares no column {undeclared[0]!r}")
        except Exception as error:
            return _make_failed_record(row, error)
        try:
            Record(outcome.row, outcome.samples).to_line()
        except (TypeError, ValueError) as error:  # a value that JSON cannot store fails this case, not the run
            return _make_failed_record(case.row(), error)
        return outcome


@dataclass(frozen=True)
class RoundResult:
    """One round of a process run, by the case's index in the job: samples in milliseconds, the number of disturbed
    samples, and the status and reason of failures."""

    samples: Mapping[int, list[float]]
    disturbed: Mapping[int, int]
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
    energy: bool  # also measured, if the device has a counter
    choices: kernel_choices.Choices = field(default_factory=dict)

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Measure rounds of all cases, interleaved, and send each round when it is finished."""
        threads, device = _set_threads(self.group), self.group.config.device
        kernel_choices.apply_choices(self.choices)
        task = find_task(self.group.target)
        assert task.work is not None  # only timed cases are prepared
        limit_memory(self.memory_bytes)
        workloads: list[Workload] = []
        for index, case in enumerate(self.cases):
            board.set_stage(index, MAKING_INPUTS, self.timeout_s[index])
            workloads.append(task.work(replace(case, keys_model=task.keys)))
            workloads[-1].warm()
        before, watch = GlobalState.capture(), DisturbanceWatch()
        rounds = run_rounds(
            {str(i): make_timed(workload, seed=self.seed) for i, workload in enumerate(workloads)},
            {str(i): plan for i, plan in enumerate(self.sampling_plans)},
            {str(i): count for i, count in enumerate(self.rounds)},
            seed=self.seed,
            device=device,
            single_thread=threads == 1 and device == "cpu",
            before_sample=lambda name: board.set_stage(int(name), TIMING, self.timeout_s[int(name)]),
            after_sample=lambda: _check_global_state(before),
        )
        for r in rounds:
            failed = {int(n): classify_error(e) for n, e in r.errors.items()}
            send(RoundResult(_by_index(r.samples), _by_index(r.disturbed), failed))
        disturbance = watch.read_interval()
        observations = asdict(disturbance)
        if device == "cuda":
            observations["gpu"] = {n: str(v) for n, v in read_sensors().items()}
        # a thread that waits for a GPU is not disturbed
        reasons = disturbance.describe(threads if device == "cpu" else None)
        graph_breaks = {i: workload.graph_breaks for i, workload in enumerate(workloads)}
        send(ProcessRunEnd(reasons, observations, graph_breaks, self._measure_energy(workloads)))

    def _measure_energy(self, workloads: Sequence[Workload]) -> dict[int, float | None]:
        device = self.group.config.device
        read = find_meter(device) if self.energy else None
        if read is None:
            return {}
        return {
            i: measure_joules_per_call(make_timed(workload, seed=self.seed), plan.cost.calls, read, device=device)
            for i, (workload, plan) in enumerate(zip(workloads, self.sampling_plans, strict=True))
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
        """Measure the rates for each dtype and number of threads."""
        board.set_stage(0, MAKING_INPUTS, self.limit_s)
        if self.canary:
            send(verify_memory_counter(self.device))
        default, watch = _default_threads(), DisturbanceWatch()
        for dtype, threads in self.settings:
            send((dtype, threads, measure_roofline_rates(self.device, dtype, threads or default)))
        send(watch.read_interval())


def _by_index(by_name: Mapping[str, Any]) -> dict[int, Any]:
    return {int(name): value for name, value in by_name.items()}


def _set_threads(group: Group) -> int:
    # read first: if jobs share a process, the setting of one must not become the default of the next
    default = _default_threads()
    torch.set_num_threads(group.config.threads or default)
    return torch.get_num_threads()


@cache
def _default_threads() -> int:
    return torch.get_num_threads()


def _check_global_state(before: GlobalState) -> None:
    if reason := before.describe_change():
        before.restore()
        raise GlobalStateChanged(reason)


# -- failures ------------------------------------------------------------------------------------------------------


def classify_error(error: BaseException) -> tuple[Status, str]:
    """The status and the reason of a case that raised an exception."""
    if isinstance(error, UnsupportedError):
        return "unsupported", str(error)
    if isinstance(error, InvalidResult | GlobalStateChanged):
        return "invalid", str(error)
    if isinstance(error, TooSlow):
        return "timeout", str(error)
    # torch reports a failed CPU allocation as a plain RuntimeError
    on_cpu = isinstance(error, RuntimeError) and ("not enough memory" in str(error) or "can't allocate" in str(error))
    out_of_memory = on_cpu or isinstance(error, MemoryError | torch.OutOfMemoryError)
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return "oom" if out_of_memory else "error", text


def _make_failed_record(row: Row, error: BaseException) -> Record:
    """The record of a case that raised an exception, without the columns of its task."""
    row.status, row.reason = classify_error(error)
    row.extra = {}
    if row.device == "cuda" and row.status == "oom":
        torch.cuda.empty_cache()
    return Record(row)


integrity.record_integrity()  # workers import this module before they load plug-ins
