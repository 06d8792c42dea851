"""GPUs: their properties, and their current clock, power, temperature and load."""

from __future__ import annotations

from typing import Any

import torch

from .readings import Unknown, try_reading
from .software import run_command

SMI_QUERIES = "driver_version,clocks.max.sm,clocks.max.memory,power.limit,persistence_mode,mig.mode.current"
SENSORS = {
    "sm_mhz": "clock_rate",
    "power_mw": "power_draw",
    "temperature_c": "temperature",
    "busy_percent": "utilization",
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
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "cudnn": try_reading(torch.backends.cudnn.version, Exception),
        **driver,
    }


def read_sensors(index: int = 0) -> dict[str, int | Unknown]:
    """Current clock, power, temperature and load of a device; `Unknown` for those that torch cannot read (it requires
    pynvml)."""
    if not torch.cuda.is_available():
        return dict.fromkeys(SENSORS, Unknown("no CUDA device on this machine"))
    # any exception, because NVML's errors are classes of a package that may not be installed
    return {name: try_reading(lambda f=f: getattr(torch.cuda, f)(index), Exception) for name, f in SENSORS.items()}
