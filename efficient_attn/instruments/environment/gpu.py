"""GPUs: their properties, and their current clock, power, temperature, load, throttling and processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .readings import ROOT, Unknown, read_table, try_reading, value_or_none
from .software import run_command

SMI_QUERIES = "driver_version,clocks.max.sm,clocks.max.memory,power.limit,persistence_mode,mig.mode.current"
POWER_LIMIT = "power limit"
THROTTLE_REASONS = {  # bits of NVML, except those of an idle GPU and of clocks that somebody has set
    0x04: POWER_LIMIT,
    0x08: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
SDP_KERNELS = ("flash", "math", "mem_efficient", "cudnn")  # of scaled_dot_product_attention
MIXED = "different settings"  # torch reads no value after both of its interfaces for float32 were used


@dataclass(frozen=True)
class NvmlDevice:
    """A GPU in NVML, which has more sensors than torch. nvml: its Python package."""

    nvml: Any
    handle: Any

    def read(self, name: str, *arguments: Any) -> Any:
        """The result of ``nvmlDeviceGet..``, or an `Unknown` where the device or the package does not have it."""
        errors = self.nvml.NVMLError, AttributeError
        return try_reading(lambda: getattr(self.nvml, f"nvmlDeviceGet{name}")(self.handle, *arguments), *errors)


SENSORS: dict[str, Callable[[NvmlDevice], Any]] = {
    "sm_mhz": lambda device: device.read("ClockInfo", device.nvml.NVML_CLOCK_SM),
    "power_mw": lambda device: device.read("PowerUsage"),
    "temperature_c": lambda device: device.read("Temperature", device.nvml.NVML_TEMPERATURE_GPU),
    "throttled": lambda device: _name_throttling(device.read("CurrentClocksThrottleReasons")),
    "others": lambda device: _list_others(device.read("ComputeRunningProcesses")),
}


def list_gpus() -> list[str]:
    """The names of the visible devices."""
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def list_gpu_details() -> list[dict[str, Any]]:
    """Properties that do not change during a run, one entry for each device; empty without any."""
    return [_read_details(i) for i in range(torch.cuda.device_count())]


def _read_details(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)  # nvidia-smi counts all devices, torch the visible ones
    command = "nvidia-smi", f"--query-gpu={SMI_QUERIES}", "--format=csv,noheader", f"--id=GPU-{uuid}"
    output = run_command(*command) if uuid else None
    values = [v.strip() for v in output.splitlines()[0].split(",")] if output else []
    driver: dict[str, Any] = dict(zip(SMI_QUERIES.split(","), values, strict=False))
    if not driver:
        driver["driver_version"] = Unknown("not reported by nvidia-smi")
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "l2_bytes": read_l2_bytes(index),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "cudnn": try_reading(torch.backends.cudnn.version, Exception),
        "flags": read_flags(),
        **driver,
    }


def read_l2_bytes(index: int = 0) -> int:
    """The size of the L2 cache, the last one before the memory."""
    return torch.cuda.get_device_properties(index).L2_cache_size


def read_precision(read: Callable[[], Any]) -> Any:
    """A setting of float32 products, or `MIXED` where torch refuses to name one."""
    try:
        return read()
    except RuntimeError:
        return MIXED


def read_flags() -> dict[str, Any]:
    """torch's settings that decide which kernels run on a GPU, and how precise products of float32 are."""
    native = torch._C
    return {
        "matmul_tf32": read_precision(native._get_cublas_allow_tf32),
        "matmul_fp32_precision": native._get_fp32_precision_getter("cuda", "matmul"),
        "cudnn_tf32": read_precision(native._get_cudnn_allow_tf32),
        "cudnn_benchmark": native._get_cudnn_benchmark(),
        "cudnn_deterministic": native._get_cudnn_deterministic(),
        **{f"{name}_sdp": getattr(native, f"_get_{name}_sdp_enabled")() for name in SDP_KERNELS},
    }


# -- sensors -------------------------------------------------------------------------------------------------------


def find_nvml_device() -> NvmlDevice | Unknown:
    """The current device, found by its UUID, because NVML also counts devices that are not visible to this process."""
    if not torch.cuda.is_available():
        return Unknown("no CUDA device on this machine")
    try:
        import pynvml as nvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return Unknown("NVML's Python package is not installed: pip install 'efficient-attn[nvml]'")
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    if isinstance(failure := try_reading(nvml.nvmlInit, nvml.NVMLError), Unknown):
        return failure
    handle = try_reading(lambda: nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.NVMLError)
    return handle if isinstance(handle, Unknown) else NvmlDevice(nvml, handle)


def read_sensors(device: NvmlDevice | Unknown | None = None) -> dict[str, Any]:
    """The current values of `SENSORS` of a device, by default the current one; `Unknown` where it has none.

    ``throttled`` names why its clock is reduced, ``others`` the processes that have memory on it, by their ids, except
    this one and those that it descends from.
    """
    device = find_nvml_device() if device is None else device
    if isinstance(device, Unknown):
        return dict.fromkeys(SENSORS, device)
    return {name: read(device) for name, read in SENSORS.items()}


def _name_throttling(bits: int | Unknown) -> list[str] | Unknown:
    return bits if isinstance(bits, Unknown) else [text for bit, text in THROTTLE_REASONS.items() if bits & bit]


def _list_others(processes: Any) -> list[int] | Unknown:
    if isinstance(processes, Unknown):
        return processes
    ids = {process.pid for process in processes}
    if os.getpid() not in ids:  # as in a container, where NVML has the ids of the host, or none
        return Unknown("NVML does not list this process")
    return sorted(ids.difference(_list_lineage()))


def _list_lineage(root: Path = ROOT) -> list[int]:
    """The ids of this process and of those that it descends from: the command's may be on the GPU too."""
    lineage = [os.getpid()]
    while (status := value_or_none(read_table(root / f"proc/{lineage[-1]}/status", ":"))) and status["PPid"] != "0":
        lineage.append(int(status["PPid"]))
    return lineage
