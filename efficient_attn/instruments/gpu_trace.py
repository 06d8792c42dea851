"""What a GPU does in a call, from torch's trace of its kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

from .timing import TimedCall

LAUNCH_BOUND_SHARE = 0.5


@dataclass(frozen=True)
class GpuTrace:
    """launches: kernels, copies and fills of a call. busy_ms: milliseconds in which at least one of them ran."""

    launches: int
    busy_ms: float

    def is_launch_bound(self, gpu_ms: float) -> bool:
        """Whether the GPU waits for the host: it works for less than half of the time between two events around a call.

        gpu_ms: this time in milliseconds.
        """
        return self.busy_ms < LAUNCH_BOUND_SHARE * gpu_ms


def trace_gpu(subject: TimedCall) -> GpuTrace | None:
    """Trace an untimed sample of as few calls as possible; None where the trace has no events of the GPU."""
    calls = subject.min_calls
    subject.reset(calls)
    torch.cuda.synchronize()
    with profile(use_device="cuda", use_kineto=True) as trace:
        subject.run(calls)
        torch.cuda.synchronize()
    subject.release()
    return sum_gpu_events(trace.kineto_results.events(), calls)  # type: ignore[union-attr]


def sum_gpu_events(events: Iterable[Any], calls: int) -> GpuTrace | None:
    """The GPU's work a call, from the events of a profile of some calls; None without any."""
    work = [e for e in events if e.device_type() == DeviceType.CUDA and not e.is_user_annotation()]
    busy_ns = end_ns = 0
    for start, end in sorted((event.start_ns(), event.end_ns()) for event in work):
        busy_ns += max(0, end - max(start, end_ns))
        end_ns = max(end, end_ns)
    return GpuTrace(round(len(work) / calls), busy_ns / 1e6 / calls) if work else None
