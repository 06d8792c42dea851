"""Energy a call, from a counter that the tests turn."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from efficient_attn.instruments.energy import MIN_MEASURED_S, _make_nvml_meter, find_meter, measure_joules_per_call
from efficient_attn.instruments.timing import TimedCall


class Device:
    """Takes 0.1 s and 3 joules a call, and 10 joules to be set up."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.seconds = self.joules = 0.0
        self.subject = TimedCall(self.run, self.reset, max_calls=limit)

    def run(self, count: int) -> None:
        self.seconds += 0.1 * count
        self.joules += 3.0 * count

    def reset(self, count: int) -> None:
        self.joules += 10


def _measured(device: Device, calls: int) -> float | None:
    return measure_joules_per_call(
        device.subject, calls, lambda: device.joules, device="cpu", clock=lambda: device.seconds
    )


@pytest.mark.parametrize("calls", [1, 2, 40])
def test_what_the_calls_took_is_shared_among_them(calls: int) -> None:
    device = Device()
    assert _measured(device, calls) == pytest.approx(3)
    assert device.seconds >= MIN_MEASURED_S


def test_what_must_be_set_up_anew_too_soon_has_no_number() -> None:
    assert _measured(Device(limit=3), 1) is None


def test_there_is_no_counter_where_there_is_no_gpu() -> None:
    assert find_meter("cpu") is None


class NVMLError(Exception):
    pass


def _refuse(handle: str) -> int:
    raise NVMLError("not supported")


def test_the_counter_is_in_millijoules_and_may_not_be_there() -> None:
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
