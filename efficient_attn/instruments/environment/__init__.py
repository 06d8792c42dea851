"""Where a run was made: the machine, the software, the state of the source.

A value that the machine does not say is None, and ``unknown`` holds the reason under its dotted name. Nothing here
needs Linux: elsewhere more is unknown. torch comes with `environment` alone.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from . import cgroups, machine
from .identity import identify, name_machine
from .readings import ROOT, resolve_unknowns, value_or_none

__all__ = ["available_memory", "environment", "load", "name_machine"]


def environment() -> dict[str, Any]:
    """What a reader must know before comparing these numbers with others.

    ``machine`` names it in one word, in which the digest of its identity keeps machines of one name apart.
    """
    import torch

    from . import gpu, software

    gpus = gpu.list_gpus()
    identity = identify(gpus)
    facts = {
        "machine": f"{identity['name']}#{identity['digest']}",
        "identity": identity,
        "cpu": machine.cpu_name(),
        "cores": os.cpu_count() or 1,
        "usable_cores": machine.usable_cores(),
        "affinity": machine.affinity(),
        "topology": machine.topology(),
        "frequency": machine.frequency(),
        "virtualisation": machine.virtualisation(),
        "memory_bytes": machine.memory_total(),
        "memory": machine.memory(),
        "limits": {"cpus": cgroups.cpu_quota(), "memory_bytes": cgroups.memory_limit()},
        "gpus": gpus,
        "gpu": {str(i): details for i, details in enumerate(gpu.gpu_details())},
        "os": platform.platform(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_build": software.python_build(),
        "torch": torch.__version__,
        "torch_build": software.torch_build(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads_default": torch.get_num_threads(),
        "threads": software.threads(),
        "blas": software.blas(),
        "runtime": software.runtime(),
        "load_average": load(),
        "variables": software.variables(),
        "packages": software.packages(),
        "git": software.git(),
    }
    values, reasons = resolve_unknowns(facts)
    return values | {"unknown": reasons}


def load() -> list[float] | None:
    """Programs that wanted to run, on average over the last 1, 5 and 15 minutes; None where no one counts."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


def available_memory(root: Path = ROOT) -> int | None:
    """Bytes that this process may still take: the least of what the machine has and what control groups leave."""
    candidates = (value_or_none(machine.meminfo("MemAvailable", root)), value_or_none(cgroups.memory_left(root)))
    return min((bytes_ for bytes_ in candidates if bytes_ is not None), default=None)
