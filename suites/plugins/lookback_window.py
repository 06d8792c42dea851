"""The causal window as a separate pattern, so that one group can compare it with exact attention over all pairs."""

from __future__ import annotations

import efficient_attn as ea
from efficient_attn.patterns import Band


@ea.register("lookback_window", family="sparse")
class LookbackWindow(ea.SparseAttention):
    """Each query sees itself and the ``window`` keys before it, whatever the mask's causality."""

    def __init__(self, *, window: int = 128) -> None:
        super().__init__(Band(0, window), time="O(N w)")
