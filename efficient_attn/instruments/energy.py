"""Energy of a GPU's calls above that of an idle GPU, from NVML's counter of millijoules since the driver was loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from .environment.gpu import NvmlDevice, find_nvml_device
from .environment.readings import Unknown
from .timing import TimedCall, synchronize

MIN_MEASURED_S = 3.0  # the counter is updated every 20 to 100 ms, and the power follows the load more slowly
IDLE_S = 1.0  # for which the idle GPU is measured

EnergyMeter: TypeAlias = Callable[[], float]  # returns the joules that a device has used so far


def find_meter(device: str) -> EnergyMeter | None:
    """The device's energy counter; None without one, as in older devices, or without NVML's Python package."""
    sensors = find_nvml_device() if device == "cuda" else None
    if not isinstance(sensors, NvmlDevice) or isinstance(sensors.read("TotalEnergyConsumption"), Unknown):
        return None
    return lambda: sensors.read("TotalEnergyConsumption") / 1e3


def measure_idle_watts(
    read: EnergyMeter,
    *,
    device: str,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """The power of a device while this process uses it for nothing, over `IDLE_S`."""
    synchronize(device)  # from now on it is kept awake, as between calls
    first_reading, start = read(), clock()
    sleep(IDLE_S)
    return (read() - first_reading) / (clock() - start)


def measure_joules_per_call(
    subject: TimedCall,
    calls: int,
    read: EnergyMeter,
    *,
    device: str,
    idle_watts: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """The mean over consecutive samples for at least `MIN_MEASURED_S`, without resets between them, and without what an
    idle device would have used meanwhile.

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
    return max(0.0, read() - first_reading - idle_watts * (clock() - start)) / n_calls
