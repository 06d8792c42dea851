"""What is said of the machine beside every run."""

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


def test_the_environment_can_be_kept_and_names_what_matters() -> None:
    found = collect_environment()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["kernel"] == platform.release()
    assert found["threads_default"] == found["threads"]["intra"] == torch.get_num_threads()
    assert 1 <= found["usable_cores"] <= found["cores"]
    assert found["packages"]["efficient-attn"]
    assert len(found["gpus"]) == len(found["gpu"]) == torch.cuda.device_count()
    assert "PyTorch built with" in found["torch_build"]["config"]


def test_what_is_not_known_is_none_with_its_reason() -> None:
    found = collect_environment()

    def at(dotted: str) -> Any:
        value: Any = found
        for name in dotted.split("."):
            value = value[name]
        return value

    assert all(at(name) is None and reason for name, reason in found["unknown"].items())


def test_the_machine_is_one_word_that_stays() -> None:
    first = collect_environment()["machine"]
    assert first == collect_environment()["machine"]
    assert first
    assert not any(c.isspace() for c in first)


def test_the_report_can_show_it() -> None:
    from efficient_attn.report.sections.appendix import list_environments

    shown = list_environments([("a run", collect_environment())])
    assert shown is not None
    assert {"cpu", "torch", "blas", "topology.sockets"} <= {str(row[0].text) for row in shown.rows}


def test_variables_that_change_timings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    monkeypatch.setenv("LD_PRELOAD_SECRET", "x")  # only begins like one that is kept
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    found = collect_environment()["variables"]
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["MALLOC_ARENA_MAX"] == "2"
    assert not {"MKL_NUM_THREADS", "LD_PRELOAD_SECRET", "SECRET_TOKEN"} & found.keys()


def test_a_package_that_is_not_there_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "PACKAGES", ("no-such-package",))
    assert collect_environment()["packages"] == {"no-such-package": None}


def test_the_load_is_of_three_spans() -> None:
    found = read_load_average()
    assert found is None or (len(found) == 3 and min(found) >= 0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_a_preloaded_allocator_is_seen() -> None:
    assert software.describe_runtime()["openmp"], "torch has loaded an OpenMP library"
    assert software.describe_runtime()["allocators"] == [] or os.environ.get("LD_PRELOAD")


def test_nothing_needs_linux(tmp_path: Path) -> None:
    """Every question gives an answer, or a reason, on a system without any of its files."""
    for facts in (machine.read_topology, machine.read_frequency, machine.read_virtualisation, machine.read_memory):
        values, reasons = split_unknowns(facts(tmp_path))
        assert values
        assert reasons
        assert json.dumps(values)
    assert machine.read_cpu_name(tmp_path)
    assert isinstance(software.describe_runtime(tmp_path)["openmp"], Unknown)
    assert isinstance(cgroups.read_cpu_quota(tmp_path), Unknown)
    assert find_available_memory(tmp_path) is None


def test_sensors_that_cannot_be_asked_say_why() -> None:
    found = gpu.read_sensors()
    assert found.keys() == gpu.SENSORS.keys()
    if not torch.cuda.is_available():
        assert all(isinstance(value, Unknown) and "CUDA" in value.reason for value in found.values())


def test_gpus_are_described_where_there_are_some() -> None:
    for details in gpu.list_gpu_details():
        assert details["memory_bytes"] > GIB
        assert details["driver_version"]


# -- facts ---------------------------------------------------------------------------------------------------------


def test_facts_are_settled() -> None:
    values, reasons = split_unknowns({"a": 1, "b": Unknown("why"), "c": {"d": Unknown("so"), "e": None}})
    assert values == {"a": 1, "b": None, "c": {"d": None, "e": None}}
    assert reasons == {"b": "why", "c.d": "so"}


def test_files_are_read_or_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "n").write_text(" 12\n")
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "t").write_text("a: 1 kB\nb: 2\na: 3\n")
    assert read_number(tmp_path / "n") == 12
    assert "max" in read_number(tmp_path / "max").reason  # type: ignore[union-attr]
    assert "No such file" in read_text(tmp_path / "none").reason  # type: ignore[union-attr]
    assert isinstance(read_text(tmp_path), Unknown)  # a folder
    assert read_table(tmp_path / "t", ":") == {"a": "1 kB", "b": "2"}
    assert value_or_none(Unknown("x")) is None


def test_runs_of_processors() -> None:
    assert machine.format_ranges([0, 1, 2, 3, 8, 10, 11]) == "0-3,8,10-11"
    assert machine.format_ranges([]) == ""


# -- machines that are not this one --------------------------------------------------------------------------------


CPU = "sys/devices/system/cpu"


def test_topology_of_two_sockets_with_two_threads_a_core(tmp_path: Path) -> None:
    files = {"sys/devices/system/node/node0/cpulist": "0-3", "sys/devices/system/node/node1/cpulist": "4-7"}
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = str(cpu // 4)
        files[f"{CPU}/cpu{cpu}/topology/thread_siblings_list"] = f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}"
    sizes = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"), ("3", "Unified", "1G")]
    for i, (level, kind, size) in enumerate(sizes):
        place = f"{CPU}/cpu0/cache/index{i}"
        files |= {f"{place}/level": level, f"{place}/type": kind, f"{place}/size": size}
    files[f"{CPU}/cpufreq/boost"] = "1"  # not a processor
    found, reasons = split_unknowns(machine.read_topology(tree(tmp_path, files)))
    assert reasons == {}
    assert found == {
        "sockets": 2,
        "physical_cores": 4,
        "threads_per_core": 2,
        "numa_nodes": 2,
        "cache_bytes": {"L1d": 48 * 1024, "L1i": 32 * 1024, "L2": 2 * 2**20, "L3": GIB},
    }


def test_copies_of_a_cache_are_counted_by_who_shares_one(tmp_path: Path) -> None:
    files = {}
    for cpu in range(8):
        cores = f"{cpu}", "0-3" if cpu < 4 else "4-7"
        for i, (level, kind) in enumerate([("1", "Data"), ("3", "Unified")]):
            place = f"{CPU}/cpu{cpu}/cache/index{i}"
            files |= {f"{place}/level": level, f"{place}/type": kind, f"{place}/shared_cpu_list": cores[i]}
    assert machine.count_cache_copies(tree(tmp_path, files)) == {"L1d": 8, "L3": 2}
    assert machine.count_cache_copies(tmp_path / "none") == {}


def test_frequency(tmp_path: Path) -> None:
    files = {f"{CPU}/cpu{i}/cpufreq/scaling_governor": name for i, name in enumerate(("powersave", "performance"))}
    files |= {f"{CPU}/cpu0/cpufreq/scaling_driver": "intel_pstate", f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "3500000"}
    files |= {f"{CPU}/intel_pstate/no_turbo": "0", "proc/cpuinfo": "model name : A CPU\ncpu MHz\t\t: 2400.5"}
    found = machine.read_frequency(tree(tmp_path, files))
    assert found == {
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
def test_turbo(tmp_path: Path, file: str, content: str, turbo: bool) -> None:
    assert machine.read_turbo(tree(tmp_path, {f"{CPU}/{file}": content})) is turbo


@pytest.mark.parametrize(("flags", "virtual"), [("fpu vme hypervisor lm", True), ("fpu vme lm", False)])
def test_virtualisation(tmp_path: Path, flags: str, virtual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    files = {"proc/cpuinfo": f"flags\t\t: {flags}", "sys/class/dmi/id/product_name": "KVM", "run/.containerenv": ""}
    found = machine.read_virtualisation(tree(tmp_path, files))
    assert found["hypervisor"] is virtual
    assert found["product"] == "KVM"
    assert found["container"] == "podman"


MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB"


def test_memory(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never"}
    assert machine.read_memory(tree(tmp_path, files)) == {
        "available_bytes": 8 * GIB,
        "swap_bytes": 2 * 2**20,
        "swap_free_bytes": 2**20,
        "huge_pages": "madvise",
    }
    assert find_available_memory(tmp_path) == 8 * GIB


# -- the source ----------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of its own, in which `software` seems to lie."""
    source = tree(tmp_path, {"efficient_attn/software.py": "first"}) / "efficient_attn/software.py"
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(software, "__file__", str(source))
    return tmp_path


def test_a_clean_checkout_has_no_digest(checkout: Path) -> None:
    found = software.describe_checkout()
    assert found is not None
    assert len(found["revision"]) == 40
    assert (found["changed"], found["digest"]) == (False, None)


def test_two_changed_states_are_distinguished(checkout: Path) -> None:
    digests = []
    for content in ("second", "third", "second"):
        tree(checkout, {"efficient_attn/software.py": content})
        found = software.describe_checkout()
        assert found is not None
        assert found["changed"] is True
        digests.append(found["digest"])
    assert digests[0] == digests[2] != digests[1]


def test_a_new_source_file_counts_and_a_new_result_does_not(checkout: Path) -> None:
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


def test_programs_that_are_not_there_say_nothing() -> None:
    assert software.run_command("no-such-program") is None
    assert software.run_command("false") is None
    assert software.run_command("echo", "a", "b") == "a b"
