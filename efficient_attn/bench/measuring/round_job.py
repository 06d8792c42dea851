"""The worker job that measures rounds of prepared cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...engines.job import StageBoard
from ...engines.worker import limit_memory
from ...instruments.allocator import shift_heap
from ...instruments.disturbance import DisturbanceWatch, GpuWatch, describe_gpu
from ...instruments.energy import find_meter, measure_idle_watts, measure_joules_per_call
from ...instruments.environment.gpu import find_nvml_device
from ...instruments.global_state import GlobalStateChanged
from ...instruments.gpu_trace import GpuTrace, trace_gpu
from ...instruments.timing import RoundPlan, RoundSamples, TimedCall, run_rounds
from ...results.rows import Status
from ..case import Case
from ..case_config import Group
from ..task import Task
from ..task_registry import find_task
from . import kernel_choices
from .jobs import answers, classify_error, set_threads
from .kernel_counts import KernelCounts
from .prepared_case import MAKING_INPUTS, TIMING
from .samples import make_timed
from .turn_guard import TurnGuard, guard_creation
from .workload import Workload


@dataclass(frozen=True)
class RoundResult:
    """One round of a process run, by the case's index in the job: samples in milliseconds, the number of disturbed
    samples, the status and reason of failures, and the samples by a GPU's events."""

    samples: Mapping[int, list[float]]
    disturbed: Mapping[int, int]
    failed: Mapping[int, tuple[Status, str]]
    gpu: Mapping[int, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessRunEnd:
    """The end of a process run: reasons why its times may be disturbed, the observed disturbance, and the kernels of
    attention that an untimed call of each case ran. energy_j, idle_watts, gpu: of the first run on a GPU."""

    disturbance: str | None
    observations: dict[str, Any]
    graph_breaks: Mapping[int, int]
    energy_j: Mapping[int, float | None]
    idle_watts: float | None
    gpu: Mapping[int, GpuTrace | None]
    kernels: Mapping[int, list[str]]


@dataclass(frozen=True)
class ProcessRunSpoiled:
    """The end of a process run in which one case disturbed all others, by threads or by an error after which the GPU
    answers no more, with the case and the reason; None for threads from before all cases, which every worker will have.
    """

    case: int | None
    reason: str
    status: Status = "invalid"


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
    first: bool  # of its group: energy and a GPU's work are also measured, and outputs are compared whole
    choices: kernel_choices.Choices = field(default_factory=dict)

    def run(self, board: StageBoard, send: Callable[[Any], None]) -> None:
        """Measure rounds of all cases, interleaved, and send each round when it is finished."""
        threads, device = set_threads(self.group), self.group.config.device
        kernel_choices.apply_choices(self.choices)
        task = find_task(self.group.target)
        shift_heap(self.seed)
        limit_memory(self.memory_bytes, device)
        read_joules = find_meter(device) if self.first else None
        idle_watts = read_joules and measure_idle_watts(read_joules, device=device)  # before there is any work
        guard = TurnGuard(self.cases, single_thread=threads == 1 and device == "cpu")
        workloads, failed = self._make_workloads(task, board, guard)
        send(RoundResult({}, {}, failed))
        subjects = {i: make_timed(workload, seed=self.seed, whole=self.first) for i, workload in workloads.items()}
        kernels = KernelCounts(self.cases, self.sampling_plans, self.rounds)
        watch, gpu_watch = DisturbanceWatch(), GpuWatch(find_nvml_device()) if device == "cuda" else None
        for samples in self._run_rounds(subjects, board, guard, kernels, gpu_watch):
            if culprit := guard.threads.find_culprit():
                send(ProcessRunSpoiled(*culprit))
                return
            failed = {index: classify_error(error) for index, error in samples.errors.items()}
            if spoiled := _find_lasting_failure(failed, device):
                send(spoiled)
                return
            for index in failed:
                del workloads[index]
            send(RoundResult(samples.samples, samples.disturbed, failed, samples.gpu))
        disturbance = watch.read_interval()
        failed = kernels.count_calls(workloads, subjects, guard)
        if spoiled := _find_lasting_failure(failed, device):
            send(spoiled)
            return
        send(RoundResult({}, {}, failed))
        observations = asdict(disturbance)
        # a thread that waits for a GPU is not disturbed
        reasons = disturbance.describe(threads if device == "cpu" else None)
        if gpu_watch is not None:
            observations["gpu"] = gpu_watch.summarize()
            reasons = "; ".join(filter(None, (reasons, describe_gpu(observations["gpu"])))) or None
        graph_breaks = {i: workload.graph_breaks for i, workload in workloads.items()}
        energy_j: dict[int, float | None] = {}
        traces: dict[int, GpuTrace | None] = {}
        for index in [i for i in workloads if i not in failed and self.first and device == "cuda"]:
            board.set_stage(index, TIMING, self.timeout_s[index])
            if read_joules is not None and idle_watts is not None:
                calls, limits = self.sampling_plans[index].cost.calls, {"device": device, "idle_watts": idle_watts}
                energy_j[index] = measure_joules_per_call(subjects[index], calls, read_joules, **limits)
            traces[index] = trace_gpu(subjects[index])
        send(ProcessRunEnd(reasons, observations, graph_breaks, energy_j, idle_watts, traces, kernels.counted))

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
        self,
        subjects: Mapping[int, TimedCall],
        board: StageBoard,
        guard: TurnGuard,
        kernels: KernelCounts,
        gpu_watch: GpuWatch | None,
    ) -> Iterator[RoundSamples[int]]:
        def before_sample(index: int) -> None:
            board.set_stage(index, TIMING, self.timeout_s[index])
            kernels.before_sample(index)

        def after_clock(index: int) -> None:
            guard.threads.stop_clock()
            kernels.after_clock(index)
            if gpu_watch is not None:
                gpu_watch.read_between_samples()

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


def _find_lasting_failure(failed: Mapping[int, tuple[Status, str]], device: str) -> ProcessRunSpoiled | None:
    """The first of these failures, by index, if the device answers no more, because of which all later calls fail."""
    if not failed or answers(device):
        return None
    index, (status, reason) = next(iter(failed.items()))
    return ProcessRunSpoiled(index, reason, status)
