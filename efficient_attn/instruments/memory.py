"""The memory of a call, counted from the allocator's events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from .garbage import garbage_collection_disabled

MARK_EVENT = "efficient_attn::mark"
FUSED_KERNELS = ("scaled_dot_product", "flash_attention", "efficient_attention", "cudnn_attention", "mkldnn")
COUNTED_DEVICES = ("cpu", "cuda")  # devices whose allocator has counters

Mark = Callable[[], None]
Steps = Callable[[Mark], None]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes above what existed before the call; None with the reason if the device cannot count.

    peak: the maximum. retained: still allocated after the call. output: the storage of its result; views of inputs have
    none. saved: kept between forward and backward, without the output. workspace: the rest of the peak. kernels: the
    fused kernels that ran, by torch's names.
    """

    peak: int | None = None
    retained: int | None = None
    output: int | None = None
    saved: int | None = None
    workspace: int | None = None
    kernels: tuple[str, ...] = ()
    reason: str | None = None


def measure_footprint(call: Callable[[], Any], *, device: str) -> Footprint:
    """The memory of one warm call, after an uncounted first call.

    On the CPU, the allocations and releases that torch reports are summed in order. Resident memory would include pages
    that the process retains, and miss those that it reuses. On CUDA, the allocator's counters are used.
    """

    def steps(mark: Mark) -> None:
        call()
        mark()
        result = call()
        mark()
        del result  # the bytes of the output are the difference of the last two marks
        mark()

    if device not in COUNTED_DEVICES:
        return _make_unknown_footprint(device)
    peak, (retained, after_release), kernels = _trace_steps(steps, device)
    output = retained - after_release
    return Footprint(peak=peak, retained=retained, output=output, workspace=peak - output, kernels=kernels)


def measure_training_footprint(
    forward: Callable[[], Tensor], backward: Callable[[Tensor], Any], *, device: str
) -> Footprint:
    """The memory of one warm training step, ``backward(forward())``, which returns the gradients, after an uncounted
    step.

    retained are the gradients; they are part of the workspace, because they are allocated after the saved tensors.
    """

    def steps(mark: Mark) -> None:
        backward(forward())
        mark()
        out = forward()
        mark()
        gradients = backward(out)
        out = out.detach()  # releases the graph, but not the output's storage
        mark()
        del out
        mark()
        del gradients

    if device not in COUNTED_DEVICES:
        return _make_unknown_footprint(device)
    peak, (after_forward, after_step, retained), kernels = _trace_steps(steps, device)
    output = after_step - retained
    saved = after_forward - output
    footprint = Footprint(peak=peak, retained=retained, output=output, saved=saved, kernels=kernels)
    return replace(footprint, workspace=peak - output - saved)


def verify_memory_counter(device: str, *, size: int = 64 * 2**20) -> dict[str, Any]:
    """Whether one allocation of ``size`` bytes is counted correctly: ``ok`` is None if the device cannot count."""
    measured = measure_footprint(lambda: torch.empty(size, dtype=torch.uint8, device=device), device=device)
    is_correct = measured.peak == measured.retained == measured.output == size
    return {
        "device": device,
        "expected_bytes": size,
        "measured_bytes": measured.peak,
        "ok": None if measured.peak is None else is_correct,
        "reason": measured.reason,
    }


def _make_unknown_footprint(device: str) -> Footprint:
    return Footprint(reason=f"{device} has no counter of peak memory")


# -- counting ------------------------------------------------------------------------------------------------------


def _trace_steps(steps: Steps, device: str) -> tuple[int, list[int], tuple[str, ...]]:
    """Run steps that set marks. Returns the peak after the first mark, the bytes allocated at the others relative to
    it, and the kernels that ran.

    The warm-up runs in the same trace, so that the sizes of tensors that the measured call releases are known.
    """
    counters = _MemoryCounters()
    with (
        garbage_collection_disabled(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=device == "cpu") as trace,
    ):
        steps(_record_mark if device == "cpu" else counters.mark)
    events: list[Any] = trace.profiler.kineto_results.events()  # type: ignore[union-attr]
    kernels = tuple(sorted(name for name in {e.name() for e in events} if any(part in name for part in FUSED_KERNELS)))
    peak, allocated = _sum_events(events) if device == "cpu" else (counters.peak, counters.allocated)
    return peak, allocated, kernels


def _record_mark() -> None:
    with record_function(MARK_EVENT):
        pass


def _sum_events(events: list[Any]) -> tuple[int, list[int]]:
    """The peak, and the bytes allocated at each mark after the first, from a trace on the CPU."""
    ordered = sorted((e for e in events if e.name() in ("[memory]", MARK_EVENT)), key=lambda e: e.start_ns())
    start = next(i for i, e in enumerate(ordered) if e.name() == MARK_EVENT)
    allocated = list(accumulate(e.nbytes() for e in ordered[start:]))  # a mark has 0 bytes
    at_marks = [total for total, e in zip(allocated, ordered[start:], strict=True) if e.name() == MARK_EVENT]
    return max(allocated), at_marks[1:]


class _MemoryCounters:
    """The CUDA allocator's counters, read at every mark."""

    def __init__(self) -> None:
        self.before: int | None = None
        self.allocated: list[int] = []

    def mark(self) -> None:
        torch.cuda.synchronize()
        if self.before is None:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            self.allocated.append(torch.cuda.memory_allocated() - self.before)

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - (self.before or 0)
