"""Whether a GPU is ready to measure, and which libraries and settings its kernels depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..instruments.disturbance import describe_gpu
from ..instruments.environment.gpu import list_gpu_details, list_gpus, read_sensors
from ..instruments.environment.readings import Unknown, split_unknowns, value_or_none
from ..instruments.environment.software import list_package_versions
from .readiness import Finding

MIN_FREE_BYTES = 2**30
UNITS = {"sm_mhz": "MHz", "power_mw": "mW", "temperature_c": "\u00b0C"}
LIBRARIES = {  # what needs each, and how it is installed
    "triton": ("flex_attention and Triton kernels", "pip install triton"),
    "fla-core": ("peer_* mechanisms of flash-linear-attention", "pip install 'efficient-attn[peers]'"),
}


def check_gpu() -> Iterator[Finding]:
    """Findings about the current GPU; only one without any."""
    if not list_gpus():
        yield Finding.make("gpu", "no CUDA device on this machine", {}, "use --device cpu")
        return
    free, total = torch.cuda.mem_get_info()  # also puts this process on the GPU, by which others are told apart
    facts, sensors = split_unknowns(list_gpu_details()[torch.cuda.current_device()])[0], read_sensors()
    message = f"{facts['name']}, capability {facts['capability']}, {facts['multiprocessors']} multiprocessors"
    yield Finding(topic="gpu", message=f"{message}, {facts['l2_bytes'] / 2**20:.3g} MiB of L2", numbers=facts)
    driver, advice = facts["driver_version"], "nvidia-smi does not name the driver: rows of other drivers may differ"
    message = f"{driver or 'not reported'}, CUDA {torch.version.cuda}, torch {torch.__version__}"
    yield Finding.make("driver", message, {"driver": driver}, None if driver else advice, level="note")
    message, advice = str(facts["cudnn"] or "missing"), "torch has no cuDNN: its kernel of attention is not measured"
    yield Finding.make("cudnn", message, {"cudnn": facts["cudnn"]}, None if facts["cudnn"] else advice, level="note")
    versions = list_package_versions()
    for package, (users, command) in LIBRARIES.items():
        version = versions[package]
        advice = None if version else f"{users} are skipped: {command}"
        yield Finding.make(package, version or "missing", {"version": version}, advice, level="note")
    advice = None if versions["triton"] else "patterns run in plain torch"
    message = "compiles a kernel for each shape" if versions["triton"] else "needs triton"
    yield Finding.make("flex", message, {"available": bool(versions["triton"])}, advice, level="note")
    yield from _check_activity(sensors)
    advice = "free the GPU's memory: at least 1 GiB" if free < MIN_FREE_BYTES else None
    message = f"{free / 2**30:.3g} GiB free of {total / 2**30:.3g} GiB"
    yield Finding.make("gpu memory", message, {"free_bytes": free, "total_bytes": total}, advice)
    yield from _check_flags(facts["flags"])


def _check_activity(sensors: dict[str, Any]) -> Iterator[Finding]:
    """Clocks and other processes."""
    numbers = {name: value_or_none(value) for name, value in sensors.items()}
    missing = next((value.reason for value in sensors.values() if isinstance(value, Unknown)), None)
    readings = ", ".join(f"{numbers[name]} {unit}" for name, unit in UNITS.items() if numbers[name] is not None)
    throttled = describe_gpu(numbers | {"others": None})
    advice = "cool the GPU, or wait" if throttled else f"clocks are not recorded: {missing}" if not readings else None
    message = "; ".join(filter(None, (readings or "no sensors", throttled)))
    yield Finding.make("clocks", message, numbers, advice, level="problem" if throttled else "note")
    others = numbers["others"]
    message = "not known" if others is None else ", ".join(map(str, others)) or "none but this one"
    advice = "stop the other processes on the GPU" if others else None if others == [] else f"not watched: {missing}"
    level = "problem" if others else "note"
    yield Finding.make("processes", message, {"others": others}, advice, level=level)


def _check_flags(flags: dict[str, Any]) -> Iterator[Finding]:
    """The precision of float32, and the kernels of scaled_dot_product_attention."""
    on = flags["matmul_tf32"] is not False
    message = f"TF32 {'on' if on else 'off'} in matrix products, {'on' if flags['cudnn_tf32'] else 'off'} in cuDNN"
    advice = "float32 is rounded to TF32, which verification may reject: torch.set_float32_matmul_precision('highest')"
    yield Finding.make("precision", message, flags, advice if on else None, level="note")
    kernels = {name.removesuffix("_sdp"): is_on for name, is_on in flags.items() if name.endswith("_sdp")}
    off = [name for name, is_on in kernels.items() if not is_on]
    message = ", ".join(name for name in kernels if name not in off) or "none"
    advice = f"torch may not select {', '.join(off)}: torch.backends.cuda.enable_..._sdp(True)" if off else None
    yield Finding.make("sdp", message, kernels, advice, level="note")
