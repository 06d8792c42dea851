"""Properties, settings and sensors of a GPU, simulated."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from simulated_cuda import L2_BYTES, simulate_nvml, simulated_cuda

from efficient_attn.instruments.environment import gpu
from efficient_attn.instruments.environment.readings import Unknown


def _read(nvml: Any) -> dict[str, Any]:
    with simulated_cuda(nvml):
        return gpu.read_sensors()


def test_sensors_are_read_and_missing_ones_have_a_reason() -> None:
    sensors = _read(simulate_nvml(reasons=0x1 | 0x2 | 0x4 | 0x80, watts=312.5))
    assert sensors.keys() == gpu.SENSORS.keys()
    assert (sensors["sm_mhz"], sensors["power_mw"]) == (1500, 312_500)
    assert sensors["throttled"] == ["power limit", "power brake"]  # not idle, nor clocks that were set
    assert sensors["temperature_c"] == Unknown("NVMLError: not supported")
    assert {value.reason for value in _read(None).values()} == {
        "NVML's Python package is not installed: pip install 'efficient-attn[nvml]'"
    }
    older = simulate_nvml()
    del older.nvmlDeviceGetCurrentClocksThrottleReasons
    assert isinstance(_read(older)["throttled"], Unknown)


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ((os.getpid(),), []),
        ((os.getpid(), os.getppid()), []),  # as the command, from which a worker descends
        ((99_999_999, os.getpid(), 99_999_998), [99_999_998, 99_999_999]),
        ((4, 5), Unknown("NVML does not list this process")),  # ids of the host, seen from a container
        ((), Unknown("NVML does not list this process")),
    ],
)
def test_other_processes_are_those_outside_of_this_command(pids: tuple[int, ...], others: Any) -> None:
    assert _read(simulate_nvml(pids=pids))["others"] == others


def test_a_device_that_nvml_does_not_know_has_a_reason() -> None:
    nvml = simulate_nvml()
    nvml.nvmlDeviceGetHandleByUUID = nvml.nvmlDeviceGetTemperature  # which refuses
    assert {value.reason for value in _read(nvml).values()} == {"NVMLError: not supported"}


def test_details_contain_the_cache_and_the_settings_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda():
        (details,) = gpu.list_gpu_details()
    assert details["l2_bytes"] == L2_BYTES
    flags = details["flags"]
    assert (flags["matmul_tf32"], flags["cudnn_tf32"], flags["flash_sdp"]) == (False, True, True)
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cuda.enable_cudnn_sdp(False)
        flags = gpu.read_flags()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.cuda.enable_cudnn_sdp(True)
    assert (flags["matmul_tf32"], flags["matmul_fp32_precision"], flags["cudnn_sdp"]) == (gpu.MIXED, "tf32", False)
