"""Energy per call, with a simulated counter."""

from __future__ import annotations

import time
from typing import Any

import pytest
from simulated_cuda import simulate_nvml, simulated_cuda

from efficient_attn.instruments.energy import (
    IDLE_S,
    MIN_MEASURED_S,
    find_meter,
    measure_idle_watts,
    measure_joules_per_call,
)
from efficient_attn.instruments.timing import TimedCall


class Device:
    """A device that uses 0.1 s and 3 joules per call, and 10 joules per reset."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.seconds = self.joules = 0.0
        self.subject = TimedCall(self.run, self.reset, max_calls=limit)

    def run(self, count: int) -> None:
        self.seconds += 0.1 * count
        self.joules += 3.0 * count

    def reset(self, count: int) -> None:
        self.joules += 10


def _measure(device: Device, calls: int, idle_watts: float = 0.0) -> float | None:
    options: dict[str, Any] = {"device": "cpu", "clock": lambda: device.seconds, "idle_watts": idle_watts}
    return measure_joules_per_call(device.subject, calls, lambda: device.joules, **options)


@pytest.mark.parametrize("calls", [1, 2, 40])
def test_energy_is_divided_by_the_number_of_calls(calls: int) -> None:
    device = Device()
    assert _measure(device, calls) == pytest.approx(3)
    assert device.seconds >= MIN_MEASURED_S >= 3


def test_calls_with_a_low_limit_have_no_energy() -> None:
    assert _measure(Device(limit=3), 1) is None


def test_the_power_of_an_idle_device_is_subtracted() -> None:
    device, slept = Device(), []
    watts = measure_idle_watts(lambda: 5.0 * sum(slept), device="cpu", clock=lambda: sum(slept), sleep=slept.append)
    assert (watts, slept) == (5.0, [IDLE_S])
    assert _measure(device, 7, idle_watts=watts) == pytest.approx(3 - 5 * 0.1)
    assert _measure(device, 7, idle_watts=1000) == 0


def test_the_cpu_has_no_energy_meter() -> None:
    assert find_meter("cpu") is None


def test_nvml_millijoules_are_converted_or_unsupported() -> None:
    with simulated_cuda(simulate_nvml(watts=250.0)):
        read = find_meter("cuda")
        assert read is not None
        assert 0 < read() <= 250.0 * time.monotonic() + 1
    for nvml in (simulate_nvml(has_counter=False), None):
        with simulated_cuda(nvml):
            assert find_meter("cuda") is None
