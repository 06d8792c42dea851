"""Energy of a GPU's calls, from NVML's counter of millijoules since the driver was loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from .timing import TimedCall, synchronize

MIN_MEASURED_S = 0.5  # the counter is updated every 20 to 100 ms

EnergyMeter: TypeAlias = Callable[[], float]  # returns the joules that a device has used so far


def find_meter(device: str) -> EnergyMeter | None:
    """The device's energy counter; None without one, or if NVML's Python package is not installed."""
    if device != "cuda":
        return None
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return _make_nvml_meter(pynvml, f"GPU-{uuid}")


def _make_nvml_meter(nvml: Any, uuid: str) -> EnergyMeter | None:
    """The device is found by its UUID, because NVML also counts devices that are not visible to this process."""
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:  # older devices have no such counter
        return None
    return lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def measure_joules_per_call(
    subject: TimedCall, calls: int, read: EnergyMeter, *, device: str, clock: Callable[[], float] = time.perf_counter
) -> float | None:
    """The mean over consecutive samples for at least half a second, without resets between them.

    None for a subject that cannot run that long without a reset, as in decoding.
    """
    subject.reset(calls)
    synchronize(device)
    first_reading, start, n_calls = read(), clock(), 0
    while clock() - start < MIN_MEASURED_S:
        if n_calls + calls > subject.max_calls:
            return None
        subject.run(calls)
        synchronize(device)
        n_calls += calls
    return (read() - first_reading) / n_calls
