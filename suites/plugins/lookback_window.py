"""The causal window as a pattern of its own, so that one cell can hold it and exact attention over all pairs."""

from __future__ import annotations

import efficient_attn as ea
from efficient_attn.patterns import Band


@ea.register("lookback_window", family="sparse")
class LookbackWindow(ea.SparseAttention):
    """Each query sees itself and the ``window`` keys before it, whatever the mask says about causality."""

    def __init__(self, *, window: int = 128) -> None:
        super().__init__(Band(0, window), time="O(N w)")
