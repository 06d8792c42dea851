"""Exact attention under other names: one the same, one five percent slower. What a benchmark must, and must not, tell
apart."""

from __future__ import annotations

import time

from torch import Tensor

import efficient_attn as ea

SLOWDOWN = 0.05


@ea.register("twin", family="full")
class Twin(ea.SoftmaxAttention):
    """Exact attention, the same as `full`."""


@ea.register("slower", family="full")
class Slower(ea.SoftmaxAttention):
    """Exact attention that then waits for five percent of the time that it took."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        start = time.perf_counter()
        out = super().compute(q, k, v, mask, **inputs)
        end = time.perf_counter()
        until = end + SLOWDOWN * (end - start)
        while time.perf_counter() < until:  # sleeping would be too coarse
            pass
        return out
