"""Control groups, versions 1 and 2: the strictest limit of a group and its parents applies."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import tree

from efficient_attn.instruments.environment import (
    cgroups,
    find_available_memory,
    find_total_memory,
    machine,
)
from efficient_attn.instruments.environment.readings import Unknown

GIB = 2**30
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB"
V2 = {
    "proc/self/cgroup": "0::/outer/inner",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory",
    "sys/fs/cgroup/outer/cpu.max": "150000 100000",
    "sys/fs/cgroup/outer/memory.max": str(6 * GIB),
    "sys/fs/cgroup/outer/memory.current": str(5 * GIB),
    "sys/fs/cgroup/outer/memory.stat": f"anon 1\ninactive_file {2 * GIB}",
    "sys/fs/cgroup/outer/inner/cpu.max": "max 100000",
    "sys/fs/cgroup/outer/inner/memory.max": "max",
    "sys/fs/cgroup/outer/inner/memory.current": "4096",
}
V1 = {
    "proc/self/cgroup": "5:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
    "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(6 * GIB),
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(5 * GIB),
    "sys/fs/cgroup/memory/job/memory.stat": f"inactive_file 7\ntotal_inactive_file {2 * GIB}",
}


@pytest.mark.parametrize("files", [V1, V2], ids=["v1", "v2"])
def test_the_strictest_limit_of_parent_groups_applies(tmp_path: Path, files: dict[str, str]) -> None:
    tree(tmp_path, files | {"proc/meminfo": MEMINFO})
    assert cgroups.read_cpu_quota(tmp_path) == 1.5
    assert cgroups.read_memory_limit(tmp_path) == 6 * GIB
    assert cgroups.read_memory_left(tmp_path) == 3 * GIB  # cached files count as free
    assert find_available_memory(tmp_path) == 3 * GIB
    total = machine.read_memory_total()
    assert total is not None
    assert find_total_memory(tmp_path) == min(total, 6 * GIB)


def test_parent_groups_apply_if_the_own_folder_is_hidden(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../host/path", "sys/fs/cgroup/cgroup.controllers": "cpu memory"}
    tree(tmp_path, files | {"sys/fs/cgroup/memory.max": str(GIB), "sys/fs/cgroup/cpu.max": "50000"})
    assert cgroups.read_memory_limit(tmp_path) == GIB
    assert cgroups.read_cpu_quota(tmp_path) == 0.5


def test_available_memory_is_that_of_the_machine_without_limits(tmp_path: Path) -> None:
    tree(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cgroup.controllers": "", "proc/meminfo": MEMINFO})
    assert isinstance(cgroups.read_memory_limit(tmp_path), Unknown)
    assert find_available_memory(tmp_path) == 8 * GIB
    assert find_total_memory(tmp_path) == machine.read_memory_total()


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="reads /proc")
def test_available_memory_is_at_most_the_total_memory() -> None:
    free, total = find_available_memory(), machine.read_memory_total()
    assert free is not None
    assert total is not None
    assert 2**26 < free <= total
