"""The kernels of attention that a process run's cases run, to be compared with those counted in preparation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from torch.autograd.profiler import profile

from ...instruments.memory import list_fused_kernels
from ...instruments.timing import RoundPlan, SampleCost, TimedCall
from ...results.rows import Status
from ..case import Case
from .jobs import classify_error
from .turn_guard import TurnGuard
from .workload import Workload

MAX_SHARE = 0.01  # of the planned time of all rounds that additional calls may take
TRACE_S = 0.001  # seconds that a trace takes beyond the call
ATTENTION = "attention"  # in the names of kernels that do not depend on timings of matrix products


class KernelTrace:
    """A trace of the kernels that this process runs, from its creation until it is stopped."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._profile = self._stack.enter_context(profile(use_kineto=True))

    def stop(self) -> list[str]:
        """End the trace. Returns the kernels of attention, sorted."""
        self._stack.close()
        events = self._profile.kineto_results.events()  # type: ignore[union-attr]
        return select_attention(list_fused_kernels(events))


def select_attention(kernels: Iterable[str]) -> list[str]:
    """The kernels of attention among these, sorted."""
    return sorted(name for name in kernels if ATTENTION in name)


class KernelCounts:
    """One untimed call of each case is traced: after the rounds, the baseline's first, as far as `MAX_SHARE` allows,
    otherwise its warm-up. A case with neither is not traced.

    counted: the kernels by the case's index.
    """

    def __init__(self, cases: Sequence[Case], plans: Sequence[RoundPlan], rounds: Sequence[int]) -> None:
        planned_s = sum(p.cost.sample_s * p.samples * count for p, count in zip(plans, rounds, strict=True))
        left_s = MAX_SHARE * planned_s
        self.counted: dict[int, list[str]] = {}
        self._after_rounds: list[int] = []
        self._in_warm_up: set[int] = set()
        self._trace: KernelTrace | None = None
        costs = [_estimate_seconds(plan.cost) for plan in plans]
        for index in sorted(range(len(cases)), key=lambda i: (not cases[i].is_baseline, costs[i])):
            if costs[index] <= left_s:
                left_s -= costs[index]
                self._after_rounds.append(index)
            elif plans[index].cost.warm_up_s and cases[index].group.config.mode != "decode":
                self._in_warm_up.add(index)

    def before_sample(self, index: int) -> None:
        """Begin to trace the case's warm-up, if that is planned."""
        self._end_trace()  # of a warm-up that failed
        if index in self._in_warm_up:
            self._in_warm_up.remove(index)
            self._trace = KernelTrace()

    def after_clock(self, index: int) -> None:
        """The warm-up has ended."""
        if self._trace is not None:
            self.counted[index] = self._end_trace()

    def _end_trace(self) -> list[str]:
        trace, self._trace = self._trace, None
        return trace.stop() if trace else []

    def count_calls(
        self, workloads: Mapping[int, Workload], subjects: Mapping[int, TimedCall], guard: TurnGuard
    ) -> dict[int, tuple[Status, str]]:
        """Trace one more call of those workloads that are planned for it. Returns failures by index."""
        failed: dict[int, tuple[Status, str]] = {}
        for index in (i for i in self._after_rounds if i in workloads):
            try:
                self.counted[index] = _count_call(workloads[index], subjects[index])
                guard.threads.stop_clock()
                guard.after_sample(index)
            except Exception as error:
                failed[index] = classify_error(error)
        return failed


def _estimate_seconds(cost: SampleCost) -> float:
    """The seconds of one more call with its trace."""
    return cost.calls_s / cost.calls + cost.reset_s + TRACE_S


def _count_call(workload: Workload, subject: TimedCall) -> list[str]:
    decoding = workload.case.group.config.mode == "decode"
    if decoding:
        subject.reset(1)
    trace = KernelTrace()
    try:
        if decoding:
            subject.run(1)
        else:
            workload.make_call(workload.sample)
    finally:
        kernels = trace.stop()
    return kernels
