"""Whether a GPU is ready to measure, and which libraries and settings its kernels depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..instruments.disturbance import describe_gpu
from ..instruments.environment.gpu import list_gpu_details, list_gpus, read_sensors
from ..instruments.environment.readings import split_unknowns
from ..instruments.environment.software import list_package_versions
from .readiness import Finding

MIN_FREE_BYTES = 2**30


def check_gpu() -> Iterator[Finding]:
    """Findings about the current GPU; only one without any."""
    if not list_gpus():
        yield Finding.make("gpu", "no CUDA device on this machine", {}, "use --device cpu")
        return
    free, total = torch.cuda.mem_get_info()  # also puts this process on the GPU, by which others are told apart
    facts, _ = split_unknowns(list_gpu_details()[torch.cuda.current_device()])
    message = f"{facts['name']}, capability {facts['capability']}, {facts['multiprocessors']} multiprocessors"
    yield Finding(topic="gpu", message=f"{message}, {facts['l2_bytes'] / 2**20:.3g} MiB of L2", numbers=facts)
    versions, driver = list_package_versions(), facts["driver_version"]
    libraries = [  # topic, what is there, and advice if nothing is
        ("driver", driver and f"{driver}, CUDA {torch.version.cuda}", "nvidia-smi names no driver: note it yourself"),
        ("cudnn", facts["cudnn"], "torch has no cuDNN, whose kernel of attention is not measured"),
        ("triton", versions["triton"], "flex_attention and Triton kernels need it: pip install triton"),
        ("fla", versions["fla-core"], "flash-linear-attention is skipped: pip install 'efficient-attn[peers]'"),
        ("flex", versions["triton"] and "compiles a kernel for each shape", "needs triton: patterns run as tiles"),
    ]
    for topic, value, advice in libraries:
        yield Finding.make(topic, str(value or "missing"), {topic: value}, None if value else advice, level="note")
    yield from _check_activity(read_sensors())
    advice = "free the GPU's memory: at least 1 GiB" if free < MIN_FREE_BYTES else None
    message = f"{free / 2**30:.3g} GiB free of {total / 2**30:.3g} GiB"
    yield Finding.make("gpu memory", message, {"free_bytes": free, "total_bytes": total}, advice)
    yield from _check_flags(facts["flags"])


def _check_activity(sensors: dict[str, Any]) -> Iterator[Finding]:
    """Clocks and other processes."""
    numbers, reasons = split_unknowns(sensors)
    clock, watts, degrees = numbers["sm_mhz"], (numbers["power_mw"] or 0) / 1000, numbers["temperature_c"]
    readings = [clock and f"{clock} MHz", watts and f"{watts:.3g} W", degrees and f"{degrees} \u00b0C"]
    throttled = describe_gpu(numbers | {"others": None})
    message = "; ".join(filter(None, (", ".join(filter(None, readings)), throttled))) or "no sensors"
    advice = "cool the GPU, or wait" if throttled else clock is None and f"not recorded: {reasons['sm_mhz']}"
    yield Finding.make("clocks", message, numbers, advice or None, level="problem" if throttled else "note")
    others = numbers["others"]
    message = "not known" if others is None else ", ".join(map(str, others)) or "none but this one"
    advice = "stop the other processes on the GPU" if others else others is None and f"not watched: {reasons['others']}"
    yield Finding.make("processes", message, {"others": others}, advice or None, level="problem" if others else "note")


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
