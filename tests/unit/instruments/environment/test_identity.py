"""Identity of the machine: a readable name, and a digest that distinguishes machines of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import tree

from efficient_attn.instruments.environment import collect_environment, identity
from efficient_attn.instruments.environment.identity import find_design, identify_machine
from efficient_attn.instruments.environment.readings import split_unknowns

ZEN4 = {
    **{"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "17", "model name": "AMD EPYC", "stepping": "1"},
    **{"flags": "fpu sse avx avx2 fma avx512f avx512_bf16 hypervisor", "cpu MHz": "2596.1", "microcode": "0x1000065"},
}
ARM = {"CPU implementer": "0x41", "CPU architecture": "8", "CPU part": "0xd40", "CPU revision": "1", "Features": "sve"}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(identity, "read_memory_total", lambda: 24 * 2**30 - 10**8)
    monkeypatch.setattr(identity, "read_cpu_name", lambda root: "Some CPU")


def _machine(root: Path, about: dict[str, str], *, l1d: str = "32K") -> Path:
    files = {"proc/cpuinfo": "\n".join(f"{name}\t: {value}" for name, value in about.items())}
    for i, (level, kind, size) in enumerate([("1", "Data", l1d), ("3", "Unified", "32768K")]):
        folder = f"sys/devices/system/cpu/cpu0/cache/index{i}"
        files |= {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/size": size}
    return tree(root, files)


def test_the_name_has_vendor_design_cores_and_memory(tmp_path: Path) -> None:
    result = identify_machine(root=_machine(tmp_path, ZEN4))
    assert result["name"] == "AMD-Zen4-2c-24GiB"
    assert (result["vendor"], result["family"], result["model"], result["stepping"]) == ("AMD", 25, 17, 1)
    assert result["flags"] == ["avx", "avx2", "fma", "avx512f", "avx512_bf16"]
    assert result["virtual"]
    assert result["cache_bytes"] == {"L1d": 32768, "L3": 32 * 2**20}


@pytest.mark.parametrize(
    ("about", "name"),
    [
        (ZEN4 | {"model": "200"}, "AMD-family-25-model-200-2c-24GiB"),
        (ZEN4 | {"vendor_id": "TransmetaCPU"}, "TransmetaCPU-family-25-model-17-2c-24GiB"),
        (ARM, "ARM-NeoverseV1-2c-24GiB"),
        ({}, "Some-CPU-2c-24GiB"),
    ],
)
def test_unknown_processors_have_generic_names(tmp_path: Path, about: dict[str, str], name: str) -> None:
    assert identify_machine(root=_machine(tmp_path, about))["name"] == name


def test_the_name_includes_gpus(tmp_path: Path) -> None:
    result = identify_machine(["NVIDIA H100"], _machine(tmp_path, ZEN4))
    assert result["name"] == "AMD-Zen4-2c-24GiB-+NVIDIA_H100"


@pytest.mark.parametrize(
    ("changed", "l1d"),
    [
        *(({name: "2"}, "32K") for name in ("stepping", "model", "cpu family")),
        ({"flags": "avx avx2"}, "32K"),
        ({}, "48K"),
    ],
)
def test_the_digest_depends_on_model_flags_and_caches(tmp_path: Path, changed: dict[str, str], l1d: str) -> None:
    first = identify_machine(root=_machine(tmp_path / "one", ZEN4))
    second = identify_machine(root=_machine(tmp_path / "two", ZEN4 | changed, l1d=l1d))
    assert first["digest"] != second["digest"]


def test_the_digest_ignores_clock_and_microcode(tmp_path: Path) -> None:
    first = identify_machine(root=_machine(tmp_path / "one", ZEN4))
    second = identify_machine(root=_machine(tmp_path / "two", ZEN4 | {"cpu MHz": "3700.0", "microcode": "0x2"}))
    assert first["digest"] == second["digest"]


def test_a_system_without_proc_has_a_name(tmp_path: Path) -> None:
    values, reasons = split_unknowns(identify_machine(root=tmp_path))
    assert values["name"] == "Some-CPU-2c-24GiB"
    assert {"vendor", "family", "model", "stepping"} <= reasons.keys()


def test_designs_are_found_by_family_and_model() -> None:
    assert find_design("AMD", 26, 2) == "Zen5"
    assert find_design("AMD", 25, 0x61) == "Zen4"
    assert find_design("AMD", 25, 200) is None
    assert find_design("Intel", 6, 0x8F) == "SapphireRapids"


def test_the_machine_is_its_name_and_digest() -> None:
    environment = collect_environment()
    assert environment["machine"] == f"{environment['identity']['name']}#{environment['identity']['digest']}"


def test_name_machine_equals_the_machine_of_the_environment() -> None:
    assert identity.name_machine() == collect_environment()["machine"]
