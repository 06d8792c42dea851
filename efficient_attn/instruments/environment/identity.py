"""Identify the machine: the facts that determine how fast code runs, a short name, and a digest of the facts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import read_cache_sizes, read_cpu_name, read_cpuinfo, read_memory_total, read_topology
from .readings import ROOT, Unknown

VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon", "0x41": "ARM"}
# flags that differ between processors and that kernels of torch, oneDNN or this package check
FLAGS = (
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "asimddp", "sve", "sve2", "bf16", "i8mm", "sme"),
)
# by vendor and family: the first and last model of each design. Those of AMD are as in Linux.
DESIGNS: dict[tuple[str, int], tuple[tuple[int, int, str], ...]] = {
    ("AMD", 23): (
        *((0x00, 0x2F, "Zen"), (0x50, 0x5F, "Zen")),
        *((0x30, 0x4F, "Zen2"), (0x60, 0x7F, "Zen2"), (0x90, 0x91, "Zen2"), (0xA0, 0xAF, "Zen2")),
    ),
    ("AMD", 25): ((0x00, 0x0F, "Zen3"), (0x20, 0x5F, "Zen3"), (0x10, 0x1F, "Zen4"), (0x60, 0xAF, "Zen4")),
    ("AMD", 26): ((0x00, 0x2F, "Zen5"), (0x40, 0x4F, "Zen5"), (0x60, 0x7F, "Zen5")),
    ("Intel", 6): (
        *((0x3F, 0x3F, "Haswell"), (0x4F, 0x4F, "Broadwell"), (0x55, 0x55, "SkylakeX"), (0x6A, 0x6A, "IceLakeX")),
        *((0x8F, 0x8F, "SapphireRapids"), (0xCF, 0xCF, "EmeraldRapids"), (0xAD, 0xAD, "GraniteRapids")),
        *((0x8C, 0x8D, "TigerLake"), (0x97, 0x97, "AlderLake"), (0x9A, 0x9A, "AlderLake")),
        *((0xB7, 0xB7, "RaptorLake"), (0xBA, 0xBA, "RaptorLake"), (0xBF, 0xBF, "RaptorLake")),
    ),
    ("ARM", 8): (
        *((0xD0C, 0xD0C, "NeoverseN1"), (0xD49, 0xD49, "NeoverseN2")),
        *((0xD40, 0xD40, "NeoverseV1"), (0xD4F, 0xD4F, "NeoverseV2")),
    ),
}


def identify_machine(gpus: Sequence[str] = (), root: Path = ROOT) -> dict[str, Any]:
    """The facts that identify a machine, with the ``name`` and ``digest`` derived from them.

    Machines with one digest agree in all of these facts, none of which changes from day to day.
    """
    processor, memory, layout = read_cpuinfo(root), read_memory_total(), read_topology(root)
    flags = (processor.get("flags") or processor.get("Features") or "").split()
    vendor = processor.get("vendor_id") or processor.get("CPU implementer")
    facts: dict[str, Any] = {
        "vendor": VENDORS.get(vendor or "", vendor) or Unknown("/proc/cpuinfo names no vendor"),
        "family": _parse_number(processor, "cpu family", "CPU architecture"),
        "model": _parse_number(processor, "model", "CPU part"),
        "stepping": _parse_number(processor, "stepping", "CPU revision"),
        "cpu": read_cpu_name(root),
        "cache_bytes": read_cache_sizes(root),
        "flags": [name for name in FLAGS if name in flags],
        "cores": os.cpu_count() or 1,
        "physical_cores": layout["physical_cores"],
        # rounded, because the usable part varies with the kernel
        "memory_gib": round(memory / 2**30) if memory else Unknown("the system does not report its memory"),
        # not its kind, which is reported by a program that is not always installed
        "virtual": "hypervisor" in flags,
        "gpus": list(gpus),
    }
    plain = {name: None if isinstance(fact, Unknown) else fact for name, fact in facts.items()}  # without reasons
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:6]
    return facts | {"name": make_machine_name(facts), "digest": digest}


def name_machine(root: Path = ROOT) -> str:
    """The machine's name in rows. torch is only imported, for the names of GPUs, if there may be any."""
    drivers = (root / "proc/driver/nvidia", root / "dev/kfd")  # NVIDIA's, AMD's
    gpus: Sequence[str] = ()
    if sys.platform == "win32" or any(driver.exists() for driver in drivers):
        from .gpu import list_gpus as list_gpus

        gpus = list_gpus()
    identity = identify_machine(gpus, root)
    return f"{identity['name']}#{identity['digest']}"


def make_machine_name(facts: Mapping[str, Any]) -> str:
    """``AMD-Zen4-2c-24GiB``: vendor and design, or family and model, or the processor's own name."""
    vendor, family, model, memory = (facts[name] for name in ("vendor", "family", "model", "memory_gib"))
    if any(isinstance(fact, Unknown) for fact in (vendor, family, model)):
        processor = facts["cpu"]
    else:
        processor = f"{vendor} {find_design(vendor, family, model) or f'family {family} model {model}'}"
    size = "unknown" if isinstance(memory, Unknown) else f"{memory}GiB"
    parts = [processor, f"{facts['cores']}c", size, *(f"+{gpu.replace(' ', '_')}" for gpu in facts["gpus"])]
    return "-".join(" ".join(parts).split())


def find_design(vendor: str, family: int, model: int) -> str | None:
    """The name of the processor's design, if it is in the table."""
    models = DESIGNS.get((vendor, family), ())
    return next((name for first, last, name in models if first <= model <= last), None)


def _parse_number(processor: Mapping[str, str], *names: str) -> int | Unknown:
    """The number in the first of these lines that exists; on ARM in hexadecimal digits."""
    value = next((processor[name] for name in names if name in processor), "")
    if re.fullmatch("[0-9]+|0x[0-9a-fA-F]+", value):
        return int(value, 0 if value.startswith("0x") else 10)
    return Unknown(f"/proc/cpuinfo has no number for {names[0]}")
