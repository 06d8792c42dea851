"""Where a run was made: the machine, the software, the state of the source."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("efficient-attn", "torch", "numpy", "pandas", "matplotlib", "scipy")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_CONF", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")


def environment() -> dict[str, Any]:
    """What a reader must know before comparing these numbers with others. ``machine`` names it in one word."""
    cpu, cores, memory = _cpu(), os.cpu_count() or 1, _memory()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    gib = f"{round(memory / 2**30)}GiB" if memory else "unknown"
    return {
        "machine": "-".join([*f"{cpu} x{cores} {gib}".split(), *(f"+{g.replace(' ', '_')}" for g in gpus)]),
        "cpu": cpu,
        "cores": cores,
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        "memory_bytes": memory,
        "gpus": gpus,
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads_default": torch.get_num_threads(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "packages": {name: _version(name) for name in PACKAGES},
        "git": _git(),
    }


def _cpu() -> str:
    """The processor's own name, where the system tells."""
    linux = Path("/proc/cpuinfo")
    lines = linux.read_text().splitlines() if linux.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any] | None:
    """The revision of the checkout that runs, and whether it was changed; None for an installed package."""
    here = Path(__file__).parent
    revision = _run(here, "git", "rev-parse", "HEAD")
    if revision is None or _run(here, "git", "ls-files", "--error-unmatch", __file__) is None:
        return None
    return {"revision": revision, "changed": bool(_run(here, "git", "status", "--porcelain", "--untracked-files=no"))}


def _run(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
