"""The machine: processors, topology, frequency, virtualisation and memory."""

from __future__ import annotations

import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from .readings import ROOT, Unknown, read_number, read_table, read_text, value_or_none
from .software import run_command

CPUS = "sys/devices/system/cpu"
CONTAINER_VARIABLE = "container"  # set in containers by systemd and others
SIZE_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def read_cpu_name(root: Path = ROOT) -> str:
    """The processor's own name, if the system reports it."""
    name = read_cpuinfo(root).get("model name")
    return name or platform.processor() or platform.machine()


def count_usable_cores() -> int:
    """Logical processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_affinity() -> str | Unknown:
    """The numbers of these processors, with runs as ``first-last``."""
    if not hasattr(os, "sched_getaffinity"):
        return Unknown(f"not reported by {platform.system()}")
    return format_ranges(sorted(os.sched_getaffinity(0)))


def format_ranges(numbers: list[int]) -> str:
    """``0-3,8`` for 0, 1, 2, 3 and 8; the numbers ascend."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


# -- layout --------------------------------------------------------------------------------------------------------


def read_topology(root: Path = ROOT) -> dict[str, Any]:
    """Sockets, physical cores, threads a core, memory nodes, and the size in bytes of one cache of each level."""
    unknown = Unknown(f"no processors under /{CPUS}")
    folders = [cpu / "topology" for cpu in _list_numbered(root / CPUS, "cpu") if (cpu / "topology").is_dir()]
    sockets = {value_or_none(read_number(folder / "physical_package_id")) for folder in folders}
    cores = {value_or_none(read_text(folder / "thread_siblings_list")) for folder in folders}
    nodes = _list_numbered(root / "sys/devices/system/node", "node")
    return {
        "sockets": len(sockets) if folders else unknown,
        "physical_cores": len(cores) if folders else unknown,
        "threads_per_core": len(folders) // len(cores) if folders else unknown,
        "numa_nodes": len(nodes) or Unknown("no memory nodes under /sys/devices/system/node"),
        "cache_bytes": read_cache_sizes(root) or Unknown(f"no caches under /{CPUS}/cpu0/cache"),
    }


def read_cache_sizes(root: Path = ROOT) -> dict[str, int]:
    """Bytes of each cache that the first processor sees, by name: L1d, L1i, L2, L3."""
    sizes: dict[str, int] = {}
    for name, folder in _list_caches(root / CPUS / "cpu0"):
        match = re.fullmatch(r"(\d+)([KMG]?)", value_or_none(read_text(folder / "size")) or "")
        if match:
            sizes[name] = int(match[1]) * SIZE_UNITS[match[2]]
    return sizes


def count_cache_copies(root: Path = ROOT) -> dict[str, int]:
    """The number of caches of each name, counted by the lists of processors that share one."""
    lists_by_name: defaultdict[str, set[str]] = defaultdict(set)
    for cpu in _list_numbered(root / CPUS, "cpu"):
        for name, folder in _list_caches(cpu):
            lists_by_name[name].add(value_or_none(read_text(folder / "shared_cpu_list")) or "all")
    return {name: len(lists) for name, lists in lists_by_name.items()}


def _list_caches(cpu: Path) -> Iterator[tuple[str, Path]]:
    """The caches of a processor, each with its folder."""
    for folder in _list_numbered(cpu / "cache", "index"):
        level, kind = (value_or_none(read_text(folder / name)) for name in ("level", "type"))
        if level:
            yield f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind or "", ""), folder


def _list_numbered(folder: Path, prefix: str) -> list[Path]:
    """``cpu0``, ``cpu1``, .. in a folder, by number."""
    folders = [path for path in folder.glob(f"{prefix}[0-9]*") if path.name[len(prefix) :].isdigit()]
    return sorted(folders, key=lambda path: int(path.name[len(prefix) :]))


# -- frequency and virtualisation ----------------------------------------------------------------------------------


def read_frequency(root: Path = ROOT) -> dict[str, Any]:
    """The governor, whether turbo is allowed, and the frequency in MHz."""
    cpus = root / CPUS
    governors = {value_or_none(read_text(cpu / "cpufreq/scaling_governor")) for cpu in _list_numbered(cpus, "cpu")}
    max_khz = read_number(cpus / "cpu0/cpufreq/cpuinfo_max_freq")
    current_mhz = read_cpuinfo(root).get("cpu MHz")
    return {
        "governor": "+".join(sorted(filter(None, governors))) or read_text(cpus / "cpu0/cpufreq/scaling_governor"),
        "driver": read_text(cpus / "cpu0/cpufreq/scaling_driver"),
        "turbo": read_turbo(root),
        "max_mhz": max_khz if isinstance(max_khz, Unknown) else max_khz / 1e3,
        "mhz": float(current_mhz) if current_mhz else Unknown("/proc/cpuinfo names no clock"),
    }


def read_turbo(root: Path = ROOT) -> bool | Unknown:
    """Whether the processor may temporarily exceed its rated clock."""
    files = ("intel_pstate/no_turbo", "cpufreq/boost")
    no_turbo, boost = (value_or_none(read_number(root / CPUS / file)) for file in files)
    if no_turbo is not None:
        return no_turbo == 0
    return Unknown(f"no boost or no_turbo under /{CPUS}") if boost is None else boost == 1


def read_virtualisation(root: Path = ROOT) -> dict[str, Any]:
    """Whether a hypervisor or a container is present."""
    flags = read_cpuinfo(root).get("flags")
    kind = run_command("systemd-detect-virt", "--vm", codes=(0, 1)) if root == ROOT else None
    return {
        "hypervisor": "hypervisor" in flags.split() if flags else Unknown("/proc/cpuinfo lists no flags"),
        "kind": kind or Unknown("not reported by systemd-detect-virt"),
        "product": read_text(root / "sys/class/dmi/id/product_name"),
        "container": find_container(root),
    }


def find_container(root: Path = ROOT) -> str | None:
    """The kind of container, by its marker file or environment variable; None outside of containers."""
    files = {".dockerenv": "docker", "run/.containerenv": "podman"}
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return next((name for file, name in files.items() if (root / file).exists()), os.environ.get(CONTAINER_VARIABLE))


def read_cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's entry; empty where the system has none."""
    return value_or_none(read_table(root / "proc/cpuinfo", ":")) or {}


# -- memory --------------------------------------------------------------------------------------------------------


def read_memory_total() -> int | None:
    """Bytes of the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def read_memory(root: Path = ROOT) -> dict[str, Any]:
    """Available memory and swap at this moment, in bytes, and whether the kernel uses huge pages."""
    choice = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")  # "always [madvise] never"
    return {
        "available_bytes": read_meminfo("MemAvailable", root),
        "swap_bytes": read_meminfo("SwapTotal", root),
        "swap_free_bytes": read_meminfo("SwapFree", root),
        "huge_pages": choice if isinstance(choice, Unknown) else choice.partition("[")[2].partition("]")[0],
    }


def read_meminfo(name: str, root: Path = ROOT) -> int | Unknown:
    """Bytes of a line of /proc/meminfo."""
    rows = read_table(root / "proc/meminfo", ":")
    if isinstance(rows, Unknown):
        return rows
    amount, _, unit = rows.get(name, "").partition(" ")
    return int(amount) * 1024 if amount.isdigit() and unit == "kB" else Unknown(f"/proc/meminfo has no {name}")
