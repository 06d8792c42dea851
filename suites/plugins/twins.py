"""Exact attention under other names, equal and five percent slower, to test verdicts."""

from __future__ import annotations

import os
import time

from torch import Tensor

import efficient_attn as ea

SLOWDOWN = float(os.environ.get("TWINS_SLOWDOWN", "0.05"))


@ea.register("twin", family="full")
class Twin(ea.SoftmaxAttention):
    """Exact attention, the same as `full`."""


@ea.register("slower", family="full")
class Slower(ea.SoftmaxAttention):
    """Exact attention that then waits for five percent of its time, or for TWINS_SLOWDOWN of it."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        start = time.perf_counter()
        out = super().compute(q, k, v, mask, **inputs)
        end = time.perf_counter()
        deadline = end + SLOWDOWN * (end - start)
        while time.perf_counter() < deadline:  # sleeping would be too coarse
            pass
        return out
