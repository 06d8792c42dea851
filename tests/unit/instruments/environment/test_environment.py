"""Description of the machine and its software, which is recorded with every run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trees import tree

from efficient_attn.instruments.environment import (
    cgroups,
    collect_environment,
    describe_absence,
    find_available_memory,
    gpu,
    machine,
    read_load_average,
    software,
)
from efficient_attn.instruments.environment.readings import (
    Unknown,
    read_number,
    read_table,
    read_text,
    split_unknowns,
    value_or_none,
)

GIB = 2**30


def test_the_environment_is_json_and_has_versions_cores_and_gpus() -> None:
    environment = collect_environment()
    assert json.loads(json.dumps(environment, allow_nan=False)) == environment
    assert environment["torch"] == torch.__version__
    assert environment["python"] == platform.python_version()
    assert environment["kernel"] == platform.release()
    assert environment["threads_default"] == environment["threads"]["intra"] == torch.get_num_threads()
    assert 1 <= environment["usable_cores"] <= environment["cores"]
    assert environment["packages"]["efficient-attn"]
    assert len(environment["gpus"]) == len(environment["gpu"]) == torch.cuda.device_count()
    assert "PyTorch built with" in environment["torch_build"]["config"]


def test_unknown_values_are_none_with_a_reason() -> None:
    environment = collect_environment()

    def at(dotted: str) -> Any:
        value: Any = environment
        for name in dotted.split("."):
            value = value[name]
        return value

    assert all(at(name) is None and reason for name, reason in environment["unknown"].items())


def test_the_machine_name_is_stable_and_has_no_spaces() -> None:
    first = collect_environment()["machine"]
    assert first == collect_environment()["machine"]
    assert first
    assert not any(c.isspace() for c in first)


def test_the_environment_is_listed_in_the_report() -> None:
    from efficient_attn.report.sections.appendix import list_environments

    shown = list_environments([("a run", collect_environment())])
    assert shown is not None
    assert {"cpu", "torch", "blas", "topology.sockets"} <= {str(row[0].text) for row in shown.rows}


def test_environment_variables_that_affect_timings_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setenv("LD_PRELOAD_SECRET", "x")  # only starts like a recorded one
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    variables = collect_environment()["variables"]
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["MALLOC_ARENA_MAX"] == "2"
    assert not {"MKL_NUM_THREADS", "LD_PRELOAD_SECRET", "SECRET_TOKEN"} & variables.keys()


def test_an_absent_package_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "PACKAGES", ("no-such-package",))
    assert collect_environment()["packages"] == {"no-such-package": None}


def test_versions_of_gpu_libraries_matter_with_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"triton": "3.7.1", "fla-core": None}
    monkeypatch.setattr(software, "_find_version", versions.get)
    assert software.describe_gpu_libraries(["NVIDIA H200"]) == "triton 3.7.1, fla-core missing"
    assert software.describe_gpu_libraries([]) is None


def test_load_averages_are_three_or_unknown() -> None:
    load = read_load_average()
    assert load is None or (len(load) == 3 and min(load) >= 0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_loaded_openmp_and_allocators_are_detected() -> None:
    assert software.describe_runtime()["openmp"], "torch has loaded an OpenMP library"
    assert software.describe_runtime()["allocators"] == [] or os.environ.get("LD_PRELOAD")


def test_missing_system_files_give_reasons(tmp_path: Path) -> None:
    """Every function returns a value or a reason on a system without /proc and /sys."""
    for facts in (machine.read_topology, machine.read_frequency, machine.read_virtualisation, machine.read_memory):
        values, reasons = split_unknowns(facts(tmp_path))
        assert values
        assert reasons
        assert json.dumps(values)
    assert machine.read_cpu_name(tmp_path)
    assert isinstance(software.describe_runtime(tmp_path)["openmp"], Unknown)
    assert isinstance(cgroups.read_cpu_quota(tmp_path), Unknown)
    assert find_available_memory(tmp_path) is None


def test_sensors_without_cuda_have_a_reason() -> None:
    sensors = gpu.read_sensors()
    assert sensors.keys() == gpu.SENSORS.keys()
    if not torch.cuda.is_available():
        assert all(isinstance(value, Unknown) and "CUDA" in value.reason for value in sensors.values())


def test_gpus_have_memory_and_driver_version() -> None:
    for details in gpu.list_gpu_details():
        assert details["memory_bytes"] > GIB
        assert details["driver_version"]


# -- readings ------------------------------------------------------------------------------------------------------


def test_unknowns_are_split_from_values() -> None:
    values, reasons = split_unknowns({"a": 1, "b": Unknown("why"), "c": {"d": Unknown("so"), "e": None}})
    assert values == {"a": 1, "b": None, "c": {"d": None, "e": None}}
    assert reasons == {"b": "why", "c.d": "so"}


def test_files_are_read_or_give_a_reason(tmp_path: Path) -> None:
    (tmp_path / "n").write_text(" 12\n")
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "t").write_text("a: 1 kB\nb: 2\na: 3\n")
    assert read_number(tmp_path / "n") == 12
    assert "max" in read_number(tmp_path / "max").reason  # type: ignore[union-attr]
    assert "No such file" in read_text(tmp_path / "none").reason  # type: ignore[union-attr]
    assert isinstance(read_text(tmp_path), Unknown)  # a folder
    assert read_table(tmp_path / "t", ":") == {"a": "1 kB", "b": "2"}
    assert value_or_none(Unknown("x")) is None


def test_processors_are_formatted_as_ranges() -> None:
    assert machine.format_ranges([0, 1, 2, 3, 8, 10, 11]) == "0-3,8,10-11"
    assert machine.format_ranges([]) == ""


# -- simulated machines --------------------------------------------------------------------------------------------


CPU = "sys/devices/system/cpu"


def test_topology_counts_sockets_cores_nodes_and_caches(tmp_path: Path) -> None:
    files = {"sys/devices/system/node/node0/cpulist": "0-3", "sys/devices/system/node/node1/cpulist": "4-7"}
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = str(cpu // 4)
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}"
    sizes = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("3", "Unified", "1G")]
    for i, (level, kind, size) in enumerate(sizes):
        folder = f"{CPU}/cpu0/cache/index{i}"
        files |= {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/size": size}
    files[f"{CPU}/cpufreq/boost"] = "1"  # this folder is not a processor
    topology, reasons = split_unknowns(machine.read_topology(tree(tmp_path, files)))
    assert reasons == {}
    assert topology == {
        "sockets": 2,
        "physical_cores": 4,
        "threads_per_core": 2,
        "numa_nodes": 2,
        "cache_bytes": {"L1d": 48 * 1024, "L1i": 32 * 1024, "L2": 2 * 2**20, "L3": GIB},
    }


def test_cache_copies_are_counted_by_shared_processors(tmp_path: Path) -> None:
    files = {}
    for cpu in range(8):
        cores = f"{cpu}", "0-3" if cpu < 4 else "4-7"
        for i, (level, kind) in enumerate([("1", "Data"), ("3", "Unified")]):
            folder = f"{CPU}/cpu{cpu}/cache/index{i}"
            files |= {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/shared_cpu_list": cores[i]}
    assert machine.count_cache_copies(tree(tmp_path, files)) == {"L1d": 8, "L3": 2}
    assert machine.count_cache_copies(tmp_path / "none") == {}


def test_frequency_combines_governors_driver_and_turbo(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu{i}/cpufreq/scaling_governor": name for i, name in enumerate(("powersave", "performance"))}
    files |= {f"{CPU}/cpu0/cpufreq/scaling_driver": "intel_pstate", f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "3500000"}
    files |= {f"{CPU}/intel_pstate/no_turbo": "0", "proc/cpuinfo": "model name : A CPU\ncpu MHz\t\t: 2400.5"}
    frequency = machine.read_frequency(tree(tmp_path, files))
    assert frequency == {
        "governor": "performance+powersave",
        "driver": "intel_pstate",
        "turbo": True,
        "max_mhz": 3500.0,
        "mhz": 2400.5,
    }
    assert machine.read_cpu_name(tmp_path) == "A CPU"


@pytest.mark.parametrize(
    ("file", "content", "turbo"),
    [("intel_pstate/no_turbo", "1", False), ("cpufreq/boost", "1", True), ("cpufreq/boost", "0", False)],
)
def test_turbo_is_read_from_either_driver(tmp_path: Path, file: str, content: str, turbo: bool) -> None:
    assert machine.read_turbo(tree(tmp_path, {f"{CPU}/{file}": content})) is turbo


@pytest.mark.parametrize(("flags", "virtual"), [("fpu vme hypervisor lm", True), ("fpu vme lm", False)])
def test_virtualisation_is_detected(tmp_path: Path, flags: str, virtual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    files = {"proc/cpuinfo": f"flags\t\t: {flags}", "sys/class/dmi/id/product_name": "KVM", "run/.containerenv": ""}
    virtualisation = machine.read_virtualisation(tree(tmp_path, files))
    assert virtualisation["hypervisor"] is virtual
    assert virtualisation["product"] == "KVM"
    assert virtualisation["container"] == "podman"


MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB"


def test_memory_swap_and_huge_pages_are_read(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never"}
    assert machine.read_memory(tree(tmp_path, files)) == {
        "available_bytes": 8 * GIB,
        "swap_bytes": 2 * 2**20,
        "swap_free_bytes": 2**20,
        "huge_pages": "madvise",
    }
    assert find_available_memory(tmp_path) == 8 * GIB


# -- the checkout --------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new git checkout in which `software` seems to be."""
    source = tree(tmp_path, {"efficient_attn/software.py": "first"}) / "efficient_attn/software.py"
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(software, "__file__", str(source))
    return tmp_path


def test_a_clean_checkout_has_no_digest(checkout: Path) -> None:
    description = software.describe_checkout()
    assert description is not None
    assert len(description["revision"]) == 40
    assert (description["changed"], description["digest"]) == (False, None)


def test_the_digest_identifies_uncommitted_changes(checkout: Path) -> None:
    digests = []
    for content in ("second", "third", "second"):
        tree(checkout, {"efficient_attn/software.py": content})
        description = software.describe_checkout()
        assert description is not None
        assert description["changed"] is True
        digests.append(description["digest"])
    assert digests[0] == digests[2] != digests[1]


def test_the_digest_includes_new_sources_but_no_results(checkout: Path) -> None:
    tree(checkout, {"results/rows": "{}"})
    assert software.describe_checkout()["digest"] is None  # type: ignore[index]
    tree(checkout, {"efficient_attn/new.py": "x"})
    assert software.describe_checkout()["digest"] is not None  # type: ignore[index]


def test_outside_a_checkout_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "__file__", str(tmp_path / "software.py"))
    assert collect_environment()["git"] is None


def test_without_git_there_is_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert collect_environment()["git"] is None


def test_failed_commands_return_none() -> None:
    assert software.run_command("no-such-program") is None
    assert software.run_command("false") is None
    assert software.run_command("echo", "a", "b") == "a b"


def test_devices_that_cannot_be_used_have_a_reason() -> None:
    assert describe_absence("cpu") is None
    assert describe_absence("mps") == "results are verified in float64, which MPS does not have"
