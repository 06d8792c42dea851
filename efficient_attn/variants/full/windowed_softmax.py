"""Weights of all keys or of those in a window, and decoding from a cache of no more keys than that."""

from typing import Any

import torch
from torch import Tensor

from ...contract import Growth, Mask
from ...contract.decode_state import KVCache, RollingCache, preallocate
from ..sparse.sliding_window import SlidingWindow
from ..sparse.sparse_attention import find_pairs
from .softmax_attention import SoftmaxAttention


class WindowedSoftmax(SoftmaxAttention):
    """Base of mechanisms with a ``window``: with one, a query sees the keys of `sliding_window`, whose cost, pairs and
    decode state they have; without one, those of `full`."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.sliding = None if window is None else SlidingWindow(window=window)  # refuses negative ones

    @property
    def growth(self) -> Growth:
        return super().growth if self.sliding is None else self.sliding.growth

    def pairs(self, n: int, m: int, causal: bool) -> int | None:
        return super().pairs(n, m, causal) if self.sliding is None else self.sliding.pairs(n, m, causal)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        if self.window is None:
            return super().new_state(batch, max_len, dtype, device)
        ring = RollingCache(min(self.window + 1, max_len), max_len=max_len)
        return preallocate(ring, self.dims.cache_sizes(batch, self.kv_heads), dtype, device)

    def why_no_starts(self) -> str | None:
        return None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        if not isinstance(state, RollingCache):
            return super().advance(q, k, v, state, **inputs)
        keys, values, mask = state.extend(k, v)
        return self.run(q, keys, values, mask, **inputs), state.append(k, v)

    def find_allowed(self, mask: Mask, n: int, m: int, device: torch.device) -> Tensor:
        """The keys that queries see, bool ``[1 or B, 1, N, M]``."""
        if self.sliding is None:
            return mask.dense(n, m, device=device)
        return find_pairs(self.sliding.pattern, mask, n, m, device)
