"""Peak memory of one call, counted from the allocator's own events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class Peak(NamedTuple):
    """Bytes above what existed before the call; None with the reason where the device cannot tell."""

    bytes: int | None
    reason: str | None = None


def peak_memory(call: Callable[[], Any], *, device: str) -> Peak:
    """The peak of a call's allocations, its result included, its inputs not. The call is warmed up first.

    On the CPU every allocation and release that torch reports, added up in order: resident memory would count pages
    that the process keeps anyway and miss those it reuses. On CUDA the allocator's own peak.
    """
    call()
    if device == "cpu":
        return Peak(_cpu_peak(call))
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return Peak(torch.cuda.max_memory_allocated() - before)
    return Peak(None, f"{device} has no counter of peak memory")


def _cpu_peak(call: Callable[[], Any]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        kept = call()  # held, so that its release does not count
    events: list[Any] = trace.profiler.kineto_results.events()  # type: ignore[union-attr]
    held = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    del kept
    return peak
