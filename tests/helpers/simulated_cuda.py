"""A simulated GPU: ``cuda`` means the processor, and torch's functions for a GPU, its trace and NVML are simulated.

Unlike `pretended_gpu`, whose tensors report a GPU, it runs whole measurements with ``device="cuda"``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.overrides import TorchFunctionMode

from efficient_attn.instruments import gpu_trace
from efficient_attn.instruments.environment import gpu

L2_BYTES, TOTAL_BYTES = 2**14, 2**37


class NVMLError(Exception):
    """As pynvml raises."""


def _refuse(*arguments: Any) -> Any:
    raise NVMLError("not supported")


def simulate_nvml(
    *, reasons: int = 0, pids: tuple[int, ...] | None = None, watts: float = 100.0, has_counter: bool = True
) -> Any:
    """pynvml with one device. reasons: bits of throttling. pids: of processes on the device, by default this one and
    its parent. watts: what it uses. has_counter: of energy."""
    ids = (os.getpid(), os.getppid()) if pids is None else pids
    functions: dict[str, Any] = {
        "HandleByUUID": lambda uuid: uuid if uuid == "GPU-simulated" else _refuse(),
        "ClockInfo": lambda handle, kind: 1500,
        "PowerUsage": lambda handle: round(watts * 1000),
        "Temperature": _refuse,
        "CurrentClocksThrottleReasons": lambda handle: reasons,
        "ComputeRunningProcesses": lambda handle: [SimpleNamespace(pid=pid) for pid in ids],
        "TotalEnergyConsumption": (lambda handle: round(time.monotonic() * watts * 1000)) if has_counter else _refuse,
    }
    named = {f"nvmlDeviceGet{name}": function for name, function in functions.items()}
    constants = {"NVMLError": NVMLError, "NVML_CLOCK_SM": 1, "NVML_TEMPERATURE_GPU": 0}
    return SimpleNamespace(nvmlInit=lambda: None, **constants, **named)


class OnProcessor(TorchFunctionMode):
    """Puts on the processor what is requested for a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def redirect(x: Any) -> Any:
            return torch.device("cpu") if isinstance(x, str | torch.device) and str(x).startswith("cuda") else x

        return func(*map(redirect, args), **{name: redirect(x) for name, x in (kwargs or {}).items()})


class Event:
    """An event of a GPU that computes while the host does."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        """Milliseconds."""
        return (later.seconds - self.seconds) * 1e3


def make_event(start: int, end: int, device: Any = DeviceType.CUDA, *, annotates: bool = False) -> Any:
    """An event of a trace, in nanoseconds."""
    values = {"device_type": device, "start_ns": start, "end_ns": end, "is_user_annotation": annotates}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


@contextmanager
def simulated_cuda(nvml: Any = None) -> Iterator[pytest.MonkeyPatch]:
    """A GPU whose calls run two kernels of a microsecond. nvml: of `simulate_nvml`; None if it is not installed."""
    properties = SimpleNamespace(
        name="Simulated", uuid="simulated", total_memory=TOTAL_BYTES, L2_cache_size=L2_BYTES, major=9, minor=0,
        multi_processor_count=132,
    )  # fmt: skip
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "init": lambda: None,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "memory_allocated": lambda: 0,
        "max_memory_allocated": lambda: 0,
        "reset_peak_memory_stats": lambda: None,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_name": lambda index: "Simulated",
        "get_device_properties": lambda index: properties,
        "mem_get_info": lambda: (TOTAL_BYTES // 2, TOTAL_BYTES),
        "Event": Event,
    }
    events = [make_event(0, 1000), make_event(2000, 3000), make_event(0, 9000, DeviceType.CPU)]
    trace = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events))
    with pytest.MonkeyPatch.context() as patch, OnProcessor():
        for name, function in functions.items():
            patch.setattr(torch.cuda, name, function)
        patch.setattr(gpu_trace, "profile", lambda **options: nullcontext(trace))
        patch.setattr(gpu, "run_command", lambda *command: None)
        patch.setitem(sys.modules, "pynvml", nvml)
        yield patch
