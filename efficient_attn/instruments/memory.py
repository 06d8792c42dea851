"""The memory of a call, counted from the allocator's events."""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import profile, record_function

from ..garbage import garbage_collection_disabled
from ..shared_caches import empty_shared_caches

MARK_EVENT = "efficient_attn::mark"
FUSED_KERNELS = ("scaled_dot_product", "flash_attention", "efficient_attention", "cudnn_attention", "mkldnn")
NUMPY_DOMAIN = 389047  # of numpy's arrays in tracemalloc, `numpy.lib.tracemalloc_domain`
LARGE_OBJECT_BYTES = 2**14
COUNTED_DEVICES = ("cpu", "cuda")  # devices whose allocator has counters

Mark = Callable[[], None]
Steps = Callable[[Mark], None]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes above what existed before the first call; None with the reason if the device cannot count.

    peak: the maximum during the second call, including what the first one left. retained: still allocated when the
    second call ends, above what existed before it. output: the storage of its result; views of inputs have none. saved:
    kept between forward and backward, without the output. workspace: the rest of the peak. lasting: still allocated
    after the results of both calls are released and garbage is collected. growth: the part of it that the second call
    added.
    kernels: the fused kernels that ran, by torch's names.
    """

    peak: int | None = None
    retained: int | None = None
    output: int | None = None
    saved: int | None = None
    workspace: int | None = None
    lasting: int | None = None
    growth: int | None = None
    kernels: tuple[str, ...] = ()
    reason: str | None = None


def measure_footprint(
    forward: Callable[[], Any],
    backward: Callable[[Any], Any] | None = None,
    *,
    device: str,
    first_call: Callable[[], object] | None = None,
    modules: Iterable[nn.Module] = (),
) -> Footprint:
    """The memory of a call after a first one. Each call should get new inputs, so that no result can be reused.

    backward: makes it a training step, ``backward(forward())``, which returns the gradients. They are what is retained,
    and part of the workspace, because they are allocated after the saved tensors. first_call: the first call, if it
    differs; it must not keep its result. modules: after whose calls the events so far are summed, for a call with
    millions of events, whose trace would not fit memory. Plans and masks that mechanisms share are made anew.

    On the CPU, the allocations and releases that torch reports are summed in order. Resident memory would include pages
    that the process retains, and miss those that it reuses. On CUDA, the allocator's counters are used.
    """

    def call() -> Any:
        return forward() if backward is None else backward(forward())

    def steps(mark: Mark) -> None:
        mark()
        (first_call or call)()
        gc.collect()
        mark()
        out, gradients = forward(), None
        mark()
        if backward is not None:
            gradients = backward(out)
            out = out.detach()  # releases the graph, but not the output's storage
        mark()
        del out  # the bytes of the output are the difference of these two marks
        mark()
        del gradients
        gc.collect()
        mark()

    if device not in COUNTED_DEVICES:
        return Footprint(reason=f"{device} has no counter of peak memory")
    empty_shared_caches()
    peak, (before, after_forward, after_call, released, lasting), kernels = _trace_steps(steps, device, modules)
    output = after_call - released
    saved = None if backward is None else after_forward - before - output
    return Footprint(
        peak=peak,
        retained=(after_call if backward is None else released) - before,
        output=output,
        saved=saved,
        workspace=peak - output - (saved or 0),
        lasting=lasting,
        growth=lasting - before,
        kernels=kernels,
    )


def measure_growth(call: Callable[[], Any], calls: int, *, device: str) -> int:
    """The least number of bytes that any of some calls leaves allocated after its result is released."""

    def steps(mark: Mark) -> None:
        mark()
        for _ in range(calls):
            call()
            gc.collect()
            mark()

    _, allocated, _ = _trace_steps(steps, device)
    return min(after - before for before, after in pairwise([0, *allocated]))


def measure_allocated(make: Callable[[], Any], *, device: str) -> tuple[Any, int]:
    """The result of a call, and the bytes that it allocated and that are still allocated when it has returned, wherever
    they are referenced: tensors, numpy arrays and large Python objects."""
    results: list[Any] = []
    traces: list[Any] = []

    def steps(mark: Mark) -> None:
        mark()
        tracemalloc.start()  # after the profiler, which imports modules when it is first used
        results.append(make())
        gc.collect()
        traces.extend(tracemalloc.take_snapshot().traces)
        mark()

    try:
        _, (allocated,), _ = _trace_steps(steps, device)
    finally:
        tracemalloc.stop()
    # not small objects, of which imports in a first call allocate many
    others = sum(t.size for t in traces if t.domain == NUMPY_DOMAIN or t.size >= LARGE_OBJECT_BYTES)
    return results[0], allocated + others


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


# -- counting ------------------------------------------------------------------------------------------------------


def _trace_steps(
    steps: Steps, device: str, modules: Iterable[nn.Module] = ()
) -> tuple[int, list[int], tuple[str, ...]]:
    """Run steps that set marks. Returns the peak after the second mark and the bytes allocated at all but the first,
    both relative to the first, and the kernels that ran.

    The first call runs in the same trace, so that the sizes of tensors that the measured call releases are known.
    """
    counters, trace = _MemoryCounters(), _Trace(profile_memory=device == "cpu")
    with garbage_collection_disabled(), ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(lambda *_: trace.restart()))
        stack.enter_context(trace)
        steps(_record_mark if device == "cpu" else counters.mark)
    peak, allocated = trace.sum_events() if device == "cpu" else (counters.peak, counters.allocated)
    return peak, allocated, tuple(sorted(trace.kernels))


class _Trace:
    """Sizes that torch's profiler reports, in their order, with marks between them, and the fused kernels that ran.

    Torch knows the sizes of all allocations since the first profile of this process, so that later ones may release
    what earlier ones allocated.
    """

    def __init__(self, *, profile_memory: bool) -> None:
        self.profile_memory = profile_memory
        self.kernels: set[str] = set()
        self._sizes = array("q")
        self._marks: list[int] = []

    def __enter__(self) -> None:
        self._profile = profile(use_kineto=True, profile_memory=self.profile_memory)
        self._profile.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        events: list[Any] = self._profile.kineto_results.events()  # type: ignore[union-attr]
        self.kernels.update(list_fused_kernels(events))
        for event in sorted((e for e in events if e.name() in ("[memory]", MARK_EVENT)), key=lambda e: e.start_ns()):
            if event.name() == MARK_EVENT:
                self._marks.append(len(self._sizes))
            self._sizes.append(event.nbytes())  # a mark has 0 bytes

    def restart(self) -> None:
        """Sum the events so far, whose memory torch then releases."""
        self.__exit__(None, None, None)
        self.__enter__()

    def sum_events(self) -> tuple[int, list[int]]:
        """The peak after the second mark, and the bytes allocated at each mark after the first."""
        allocated = list(accumulate(self._sizes))
        start, second, *others = self._marks
        at_marks = [allocated[i] - allocated[start] for i in (second, *others)]
        return max(allocated[second:]) - allocated[start], at_marks


def list_fused_kernels(events: Iterable[Any]) -> tuple[str, ...]:
    """The names of the fused kernels among a profile's events, sorted."""
    return tuple(sorted(name for name in {e.name() for e in events} if any(part in name for part in FUSED_KERNELS)))


def _record_mark() -> None:
    with record_function(MARK_EVENT):
        pass


class _MemoryCounters:
    """The CUDA allocator's counters, read at every mark."""

    def __init__(self) -> None:
        self.before: int | None = None
        self.allocated: list[int] = []

    def mark(self) -> None:
        torch.cuda.synchronize()
        if self.before is None:
            self.before = torch.cuda.memory_allocated()
            return
        if not self.allocated:
            torch.cuda.reset_peak_memory_stats()
        self.allocated.append(torch.cuda.memory_allocated() - self.before)

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - (self.before or 0)
