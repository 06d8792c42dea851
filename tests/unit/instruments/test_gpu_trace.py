"""A GPU's work in a call, from events of a trace."""

from __future__ import annotations

import pytest
from simulated_cuda import make_event, simulated_cuda
from torch._C._autograd import DeviceType

from efficient_attn.instruments.gpu_trace import GpuTrace, sum_gpu_events, trace_gpu
from efficient_attn.instruments.timing import TimedCall


def test_kernels_are_counted_and_times_of_several_streams_count_once() -> None:
    ms = 1_000_000
    spans = [(10 * ms, 14 * ms), (5 * ms, 8 * ms), (11 * ms, 12 * ms), (13 * ms, 16 * ms)]  # 3 and 6 ms, in any order
    events = [make_event(*span) for span in spans]
    events += [make_event(0, 90 * ms, DeviceType.CPU), make_event(0, 90 * ms, annotates=True)]
    assert sum_gpu_events(events, 1) == GpuTrace(4, 9.0)
    assert sum_gpu_events(events, 3) == GpuTrace(1, 3.0)
    assert sum_gpu_events(events[4:], 1) is None


@pytest.mark.parametrize(("busy_ms", "bound"), [(0.2, True), (0.99, True), (1.0, False), (2.0, False)])
def test_a_call_is_launch_bound_if_the_gpu_idles_for_more_than_half_of_it(busy_ms: float, bound: bool) -> None:
    assert GpuTrace(7, busy_ms).is_launch_bound(2.0) is bound


@pytest.mark.parametrize("least", [1, 16])
def test_as_few_calls_as_possible_are_traced(least: int) -> None:
    actions: list[object] = []
    subject = TimedCall(
        actions.append, lambda count: actions.append(-count), release=lambda: actions.append("released")
    )
    subject.min_calls = least
    with simulated_cuda():
        assert trace_gpu(subject) == GpuTrace(round(2 / least), 0.002 / least)
    assert actions == [-least, least, "released"]
