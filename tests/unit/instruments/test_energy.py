"""Energy per call, with a simulated counter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from efficient_attn.instruments.energy import MIN_MEASURED_S, _make_nvml_meter, find_meter, measure_joules_per_call
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


def _measure(device: Device, calls: int) -> float | None:
    return measure_joules_per_call(
        device.subject, calls, lambda: device.joules, device="cpu", clock=lambda: device.seconds
    )


@pytest.mark.parametrize("calls", [1, 2, 40])
def test_energy_is_divided_by_the_number_of_calls(calls: int) -> None:
    device = Device()
    assert _measure(device, calls) == pytest.approx(3)
    assert device.seconds >= MIN_MEASURED_S


def test_calls_with_a_low_limit_have_no_energy() -> None:
    assert _measure(Device(limit=3), 1) is None


def test_the_cpu_has_no_energy_meter() -> None:
    assert find_meter("cpu") is None


class NVMLError(Exception):
    pass


def _refuse(handle: str) -> int:
    raise NVMLError("not supported")


def test_nvml_millijoules_are_converted_or_unsupported() -> None:
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 2500 if handle == "GPU-1" else 0,
    )
    read = _make_nvml_meter(nvml, "GPU-1")
    assert read is not None
    assert read() == 2.5
    nvml.nvmlDeviceGetTotalEnergyConsumption = _refuse
    assert _make_nvml_meter(nvml, "GPU-1") is None
