"""The worker job that measures rounds of prepared cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...engines.job import StageBoard
from ...engines.worker import limit_memory
from ...instruments.allocator import shift_heap
from ...instruments.disturbance import DisturbanceWatch
from ...instruments.energy import find_meter, measure_joules_per_call
from ...instruments.environment.gpu import read_sensors
from ...instruments.global_state import GlobalStateChanged
from ...instruments.timing import RoundPlan, RoundSamples, TimedCall, run_rounds
from ...results.rows import Status
from ..case import Case
from ..case_config import Group
from ..task import Task
from ..task_registry import find_task
from . import kernel_choices
from .jobs import classify_error, set_threads
from .kernel_counts import KernelCounts
from .prepared_case import MAKING_INPUTS, TIMING
from .samples import make_timed
from .turn_guard import TurnGuard, guard_creation
from .workload import Workload


@dataclass(frozen=True)
class RoundResult:
    """One round of a process run, by the case's index in the job: samples in milliseconds, the number of disturbed
    samples, and the status and reason of failures."""

    samples: Mapping[int, list[float]]
    disturbed: Mapping[int, int]
    failed: Mapping[int, tuple[Status, str]]


@dataclass(frozen=True)
class ProcessRunEnd:
    """The end of a process run: reasons why its times may be disturbed, the observed disturbance, and the kernels of
    attention that an untimed call of each case ran."""

    disturbance: str | None
    observations: dict[str, Any]
    graph_breaks: Mapping[int, int]
    energy_j: Mapping[int, float | None]
    kernels: Mapping[int, list[str]]


@dataclass(frozen=True)
class ProcessRunSpoiled:
    """The end of a process run in which threads disturbed all cases, with the case that started them and the reason;
    None for threads from before all cases, which every worker will have."""

    case: int | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class MeasureRounds:
    """Measure some rounds of prepared cases together. Sends a `RoundResult` for each round, then `ProcessRunEnd` or
    `ProcessRunSpoiled`."""

    group: Group
    cases: tuple[Case, ...]
    sampling_plans: tuple[RoundPlan, ...]
    rounds: tuple[int, ...]
    seed: int
    timeout_s: tuple[float, ...]
    memory_bytes: int | None
    first: bool  # of its group: energy is also measured, if the device has a counter, and outputs are compared whole
    choices: kernel_choices.Choices = field(default_factory=dict)

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Measure rounds of all cases, interleaved, and send each round when it is finished."""
        threads, device = set_threads(self.group), self.group.config.device
        kernel_choices.apply_choices(self.choices)
        task = find_task(self.group.target)
        shift_heap(self.seed)
        limit_memory(self.memory_bytes)
        guard = TurnGuard(self.cases, single_thread=threads == 1 and device == "cpu")
        workloads, failed = self._make_workloads(task, board, guard)
        send(RoundResult({}, {}, failed))
        subjects = {i: make_timed(workload, seed=self.seed, whole=self.first) for i, workload in workloads.items()}
        kernels = KernelCounts(self.cases, self.sampling_plans, self.rounds)
        watch = DisturbanceWatch()
        for samples in self._run_rounds(subjects, board, guard, kernels):
            if culprit := guard.threads.find_culprit():
                send(ProcessRunSpoiled(*culprit))
                return
            failed = {index: classify_error(error) for index, error in samples.errors.items()}
            for index in failed:
                del workloads[index]
            send(RoundResult(samples.samples, samples.disturbed, failed))
        disturbance = watch.read_interval()
        send(RoundResult({}, {}, kernels.count_calls(workloads, subjects, guard)))
        observations = asdict(disturbance)
        if device == "cuda":
            observations["gpu"] = {n: str(v) for n, v in read_sensors().items()}
        # a thread that waits for a GPU is not disturbed
        reasons = disturbance.describe(threads if device == "cpu" else None)
        graph_breaks = {i: workload.graph_breaks for i, workload in workloads.items()}
        energy_j = self._measure_energy({i: subjects[i] for i in workloads})
        send(ProcessRunEnd(reasons, observations, graph_breaks, energy_j, kernels.counted))

    def _make_workloads(
        self, task: Task, board: StageBoard, guard: TurnGuard
    ) -> tuple[dict[int, Workload], dict[int, tuple[Status, str]]]:
        """The workloads, after their slow first calls, and the failures, by the case's index."""
        assert task.work is not None  # only timed cases are prepared
        workloads: dict[int, Workload] = {}
        failed: dict[int, tuple[Status, str]] = {}
        for index, case in enumerate(self.cases):
            board.set_stage(index, MAKING_INPUTS, self.timeout_s[index])
            try:
                with guard_creation(case):
                    workload = task.work(replace(case, keys_model=task.keys))
                    workload.warm()
                workloads[index] = workload
            except GlobalStateChanged as error:
                failed[index] = classify_error(error)
            guard.threads.end_turn(index)  # new threads are its own
        return workloads, failed

    def _run_rounds(
        self, subjects: Mapping[int, TimedCall], board: StageBoard, guard: TurnGuard, kernels: KernelCounts
    ) -> Iterator[RoundSamples[int]]:
        def before_sample(index: int) -> None:
            board.set_stage(index, TIMING, self.timeout_s[index])
            kernels.before_sample(index)

        def after_clock(index: int) -> None:
            guard.threads.stop_clock()
            kernels.after_clock(index)

        guard.start()
        return run_rounds(
            subjects,
            dict(enumerate(self.sampling_plans)),
            {i: count for i, count in enumerate(self.rounds) if i in subjects},
            seed=self.seed,
            device=self.group.config.device,
            single_thread=guard.threads.single_thread,
            before_sample=before_sample,
            after_clock=after_clock,
            after_sample=guard.after_sample,
        )

    def _measure_energy(self, subjects: Mapping[int, TimedCall]) -> dict[int, float | None]:
        device = self.group.config.device
        read = find_meter(device) if self.first else None
        if read is None:
            return {}
        calls = {i: self.sampling_plans[i].cost.calls for i in subjects}
        return {i: measure_joules_per_call(timed, calls[i], read, device=device) for i, timed in subjects.items()}
