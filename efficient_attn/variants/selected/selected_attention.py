"""Attention over keys that a rule selects from all scores, and the state that stores all keys."""

from typing import Any

import torch
from torch import Tensor

from ...contract import Attention, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, preallocate
from ...errors import UnsupportedError
from ...kernels.dense import softmax_attention, widen
from ...kernels.selected_keys import Rule, attend_selected, estimate_rows_bytes
from ...patterns.pair_counts import count_possible_pairs

# of a query's own block of keys and earlier ones; created once, because every call reads them
BLOCK_TRAITS = Traits(exact=True, bidirectional=False, positional=True)


class SelectedAttention(Attention):
    """Softmax over keys that `rule` selects from a query's scores, all of which are computed: it measures what a
    selection is worth, not what it saves. Gradients are those of the selected keys.

    Backends: ``rows``, which stores the scores of some queries at a time, and ``dense``. Both select in float64, so
    that rounding rarely decides which of two keys is selected.
    """

    backends = ("rows", "dense")

    @property
    def rule(self) -> Rule:
        """The selection of keys."""
        raise UnsupportedError(f"{type(self).__name__} has no rule")

    @property
    def traits(self) -> Traits:
        return Traits(exact=True)

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", count_possible_pairs)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        group, visible = q.shape[1] // k.shape[1], mask.dense(q.shape[2], k.shape[2], device=q.device)
        scores = q.double() @ k.double().repeat_interleave(group, 1).mT * q.shape[-1] ** -0.5
        return softmax_attention(q, k, v, self.rule(scores[:, :, None], visible[:, :, None])[:, :, 0])

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend_selected(q.double(), k.double(), widen(v), mask, self.rule).to(q.dtype)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return count_possible_pairs(n, m, causal)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        if self.backend == "dense":
            return size
        return size + estimate_rows_bytes(shape.batch, shape.kv_heads, shape.m, training=training)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        return preallocate(KVCache(max_len), self.dims.cache_sizes(batch, self.kv_heads), dtype, device)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        state = state.append(k, v)
        keys, values = state.filled()
        return self.run(q, keys, values, state.mask), state

    def absorb(self, k: Tensor, v: Values, state: KVCache, **inputs: Tensor) -> KVCache:
        return state.append(k, require_values(v))
