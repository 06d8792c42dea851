"""The kernels of attention that a call runs, by torch's names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile

from .memory import list_fused_kernels

TRACE_S = 0.001  # seconds that a trace takes beyond the call
ATTENTION = "attention"  # in the names of kernels that do not depend on timings of matrix products


@contextmanager
def trace_kernels() -> Iterator[set[str]]:
    """Collect the names of fused kernels that run in this context; the set is filled at its end."""
    names: set[str] = set()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        yield names
    names.update(list_fused_kernels(trace.profiler.kineto_results.events()))  # type: ignore[union-attr]


def select_attention(kernels: set[str] | list[str]) -> list[str]:
    """The kernels of attention among these, sorted."""
    return sorted(name for name in kernels if ATTENTION in name)
