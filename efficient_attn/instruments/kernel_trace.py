"""The kernels of attention that a call runs, by torch's names."""

from __future__ import annotations

from collections.abc import Iterable

from torch.profiler import ProfilerActivity, profile

from .memory import list_fused_kernels

TRACE_S = 0.001  # seconds that a trace takes beyond the call
ATTENTION = "attention"  # in the names of kernels that do not depend on timings of matrix products


class KernelTrace:
    """A trace of the kernels that this process runs, from its creation until it is stopped."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU])
        self._profile.start()

    def stop(self) -> list[str]:
        """End the trace. Returns the kernels of attention, sorted."""
        self._profile.stop()
        events = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        return select_attention(list_fused_kernels(events))


def select_attention(kernels: Iterable[str]) -> list[str]:
    """The kernels of attention among these, sorted."""
    return sorted(name for name in kernels if ATTENTION in name)
