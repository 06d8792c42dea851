"""Interleaved timing of calls, so that disturbances affect all of them alike, and formatting. Used by other trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.shapes import Sample, Shape
from efficient_attn.results.stats import Estimate

TimedRun = Callable[[], object]
KV_HEADS = {"gqa": 2, "mqa": 1, "mla": 1}


def make_attention(spec: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[ea.Attention, Sample]:
    """A mechanism for ``(batch, heads, length, width)``, and inputs that require gradients."""
    batch, heads, length, width = shape
    kv_heads = KV_HEADS.get(spec.partition(":")[0], heads)
    dims = ea.Dims(heads=heads, head_dim=width, kv_heads=kv_heads, max_len=length)
    attn = ea.create(spec, dims=dims).to(dtype)
    sizes = Shape(batch, heads, kv_heads, length, length, width, width)
    sample = attn.sample(sizes, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for x in (sample.q, sample.k, sample.v):
        if x is not None:
            x.requires_grad_()
    return attn, sample


def make_call(attn: ea.Attention, sample: Sample, causal: bool, gradient: bool) -> TimedRun:
    """One call of a mechanism, with gradients of its inputs or without gradients."""
    leaves = [x for x in (sample.q, sample.k, sample.v) if x is not None]
    mask = ea.Mask(causal=causal)
    return make_run(lambda: attn(sample.q, sample.k, sample.v, mask, **sample.inputs), leaves, gradient)


def make_run(call: Callable[[], Tensor], leaves: list[Tensor], gradient: bool) -> TimedRun:
    """The call without gradients, or followed by the gradients of all `leaves`."""
    if gradient:
        out = call()
        weights = torch.randn(out.shape).to(out.dtype)
        return lambda: torch.autograd.grad(call(), leaves, weights, allow_unused=True)

    def forward() -> None:
        with torch.no_grad():
            call()

    return forward


def time_interleaved(runs: Mapping[str, TimedRun], *, rounds: int = 15, least_s: float = 0.01) -> dict[str, np.ndarray]:
    """Seconds of a call, by name and round. A sample repeats the call until it takes ``least_s``; every other round is
    in reverse order."""
    fastest = {name: min(measure_seconds(run) for _ in range(3)) for name, run in runs.items()}
    repeats = {name: max(int(least_s / seconds), 1) for name, seconds in fastest.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in list(runs.items())[:: -1 if number % 2 else 1]:
            times[name].append(measure_seconds(run, repeats[name]))
    return {name: np.array(values) for name, values in times.items()}


def format_estimate(estimate: Estimate, digits: int = 2) -> str:
    """``1.33 (1.20-1.50)``."""
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f}-{estimate.high:.{digits}f})"


def measure_seconds(run: TimedRun, repeats: int = 2) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats
