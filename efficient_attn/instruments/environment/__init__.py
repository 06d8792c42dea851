"""The environment of a run: machine, software, and state of the sources.

A value that the machine does not report is None, and ``unknown`` has the reason under its dotted name. On systems other
than Linux more values are unknown. Only `collect_environment` imports torch.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from . import cgroups, machine
from .identity import identify_machine, name_machine
from .readings import ROOT, Unknown, split_unknowns, value_or_none

__all__ = ["collect_environment", "describe_absence", "find_available_memory", "name_machine", "read_load_average"]


def collect_environment() -> dict[str, Any]:
    """The environment as ``run.json`` records it.

    ``machine`` is its name, with a digest of its identity that distinguishes machines of one name.
    """
    import torch

    from . import gpu, software

    gpus = gpu.list_gpus()
    identity = identify_machine(gpus)
    blas = re.search("BLAS_INFO=([^,]*)", torch.__config__.show())
    facts = {
        "machine": f"{identity['name']}#{identity['digest']}",
        "identity": identity,
        "cpu": machine.read_cpu_name(),
        "cores": os.cpu_count() or 1,
        "usable_cores": machine.count_usable_cores(),
        "affinity": machine.read_affinity(),
        "topology": machine.read_topology(),
        "frequency": machine.read_frequency(),
        "virtualisation": machine.read_virtualisation(),
        "memory_bytes": machine.read_memory_total(),
        "memory": machine.read_memory(),
        "limits": {"cpus": cgroups.read_cpu_quota(), "memory_bytes": cgroups.read_memory_limit()},
        "gpus": gpus,
        "gpu": {str(i): details for i, details in enumerate(gpu.list_gpu_details())},
        "os": platform.platform(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_build": software.describe_python_build(),
        "torch": torch.__version__,
        "torch_build": software.describe_torch_build(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads_default": torch.get_num_threads(),
        "threads": {"intra": torch.get_num_threads(), "inter": torch.get_num_interop_threads()},
        "blas": blas[1].strip() if blas else Unknown("torch's build settings name no BLAS_INFO"),
        "runtime": software.describe_runtime(),
        "load_average": read_load_average(),
        "variables": software.list_variables(),
        "packages": software.list_package_versions(),
        "gpu_libraries": software.describe_gpu_libraries(gpus),
        "git": software.describe_checkout(),
    }
    values, reasons = split_unknowns(facts)
    return values | {"unknown": reasons}


def describe_absence(device: str) -> str | None:
    """Why a device cannot be used here; None when it can."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA device on this machine"
    if device == "mps":
        return "results are verified in float64, which MPS does not have"
    return None


def read_load_average() -> list[float] | None:
    """Runnable programs, averaged over the last 1, 5 and 15 minutes; None if not available."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def find_available_memory(root: Path = ROOT) -> int | None:
    """Bytes that this process may still allocate: the smaller of the machine's and the control groups' free memory."""
    readings = machine.read_meminfo("MemAvailable", root), cgroups.read_memory_left(root)
    return min((size for size in map(value_or_none, readings) if size is not None), default=None)


def find_total_memory(root: Path = ROOT) -> int | None:
    """Bytes that processes may allocate on an idle machine: its memory, or less where control groups limit it."""
    readings = machine.read_memory_total(), cgroups.read_memory_limit(root)
    return min((size for size in map(value_or_none, readings) if size is not None), default=None)
