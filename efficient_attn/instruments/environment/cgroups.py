"""Control groups, version 1 and 2: the processors and the memory that a container or a service allows."""

from __future__ import annotations

from pathlib import Path

from .readings import ROOT, Unknown, read_number, read_table, read_text, value_or_none

UNLIMITED = 2**60  # version 1 writes "no limit" as a number about this large


def list_groups(controller: str, root: Path = ROOT) -> list[Path]:
    """The folders of this process's control group and all its parents, its own first; empty without any."""
    members = read_text(root / "proc/self/cgroup")
    if isinstance(members, Unknown):
        return []
    mount = root / "sys/fs/cgroup"
    unified = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
    for line in members.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return _list_existing_parents(mount / controller, path)
    group = next((line[3:] for line in members.splitlines() if line.startswith("0::")), None)
    return [] if group is None else _list_existing_parents(unified, group)


def _list_existing_parents(mount: Path, path: str) -> list[Path]:
    """The existing folders from a group to its mount. In a container, the path may be the host's and not exist."""
    folder = mount / path.lstrip("/")
    folders = [folder, *folder.parents]
    return [folder for folder in folders if folder.is_relative_to(mount) and folder.is_dir()]


def read_cpu_quota(root: Path = ROOT) -> float | Unknown:
    """Processors that the groups allow on average: the least of their quotas."""
    quotas = [q for folder in list_groups("cpu", root) if (q := _read_quota(folder)) is not None]
    return min(quotas) if quotas else Unknown("no control group limits the processors")


def _read_quota(folder: Path) -> float | None:
    limit = value_or_none(read_text(folder / "cpu.max"))
    if limit is not None:  # "200000 100000" or "max 100000"
        quota, _, period = limit.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    quota, period = (value_or_none(read_number(folder / name)) for name in names)
    return quota / period if quota is not None and quota > 0 and period else None


def read_memory_limit(root: Path = ROOT) -> int | Unknown:
    """Bytes that the groups allow: the least of their limits."""
    limits = [limit for folder in list_groups("memory", root) if (limit := _read_limit(folder)) is not None]
    return min(limits) if limits else Unknown("no control group limits the memory")


def read_memory_left(root: Path = ROOT) -> int | Unknown:
    """Bytes that may be allocated before a limit is reached. Cached files do not count, as they are evicted."""
    remaining = []
    for folder in list_groups("memory", root):
        limit = _read_limit(folder)
        used = value_or_none(read_number(folder / "memory.current"))
        used = value_or_none(read_number(folder / "memory.usage_in_bytes")) if used is None else used
        if limit is None or used is None:
            continue
        stats = value_or_none(read_table(folder / "memory.stat")) or {}
        cached = stats.get("total_inactive_file") or stats.get("inactive_file") or "0"
        remaining.append(max(0, limit - used + min(used, int(cached))))
    return min(remaining) if remaining else Unknown("no control group limits the memory")


def _read_limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        limit = value_or_none(read_number(folder / name))  # None for "max"
        if limit is not None and 0 <= limit < UNLIMITED:
            return limit
    return None


def count_throttled(root: Path = ROOT) -> int | None:
    """How often the control groups have throttled this process so far; None if it is not counted."""
    stats = [value_or_none(read_table(folder / "cpu.stat")) or {} for folder in list_groups("cpu", root)]
    counts = [int(stat["nr_throttled"]) for stat in stats if "nr_throttled" in stat]
    return sum(counts) if counts else None
