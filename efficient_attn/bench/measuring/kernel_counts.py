"""The kernels of attention that a process run's cases run, to be compared with those counted in preparation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...instruments.kernel_trace import TRACE_S, KernelTrace
from ...instruments.timing import RoundPlan, SampleCost, TimedCall
from ..case import Case
from .turn_guard import TurnGuard
from .workload import Workload

MAX_SHARE = 0.01  # of the planned time of all rounds that additional calls may take


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
        order = sorted(range(len(cases)), key=lambda i: (not cases[i].is_baseline, _estimate_seconds(plans[i].cost)))
        for index in order:
            cost = _estimate_seconds(plans[index].cost)
            if cost <= left_s:
                left_s -= cost
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
    ) -> dict[int, Exception]:
        """Trace one more call of those workloads that are planned for it. Returns exceptions by index."""
        errors: dict[int, Exception] = {}
        for index in (i for i in self._after_rounds if i in workloads):
            try:
                self.counted[index] = _count_call(workloads[index], subjects[index])
                guard.after_clock(index)
                guard.after_sample(index)
            except Exception as error:
                errors[index] = error
        return errors


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
