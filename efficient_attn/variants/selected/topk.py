"""Attention over the keys with the largest scores."""

from functools import partial

import torch
from torch import Tensor

from ...contract import Attention, Budget, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, preallocate
from ...errors import check_at_least_one
from ...kernels.dense import softmax_attention
from ...kernels.selected_keys import Rule, attend_selected, estimate_rows_bytes, select_largest
from ...patterns.pair_counts import count_possible_pairs


class SelectedAttention(Attention):
    """Softmax over keys that `rule` selects from a query's scores: all scores are computed, so that it measures what a
    selection is worth, not what it saves. Gradients are
    those of the selected keys.

    Backends: ``rows``, which stores the scores of some queries at a time, and ``dense``.
    """

    backends = ("rows", "dense")

    @property
    def rule(self) -> Rule:
        """The selection of keys."""
        raise NotImplementedError

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
        return attend_selected(q, k, v, mask, self.rule)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return count_possible_pairs(n, m, causal)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        if self.backend == "dense":
            return size
        return size + estimate_rows_bytes(shape.batch, shape.kv_heads, shape.m, training=training)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        return preallocate(KVCache(max_len), self.dims.cache_sizes(batch, self.kv_heads), dtype, device)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor) -> tuple[Tensor, KVCache]:
        state = state.append(k, v)
        return self.run(q, *state.filled(), state.mask), state

    def absorb(self, k: Tensor, v: Values, state: KVCache, **inputs: Tensor) -> KVCache:
        return state.append(k, require_values(v))


class TopK(SelectedAttention):
    """Softmax over the keys with the largest scores of each query and head: the best selection of so many keys, against
    which others are judged (Gupta et al. 2021, arXiv:2106.06899).

    keys: their number; where scores are equal to the last of them, all of these count.
    """

    def __init__(self, *, keys: int = 64) -> None:
        super().__init__()
        check_at_least_one("topk", keys=keys)
        self.keys = keys

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """All keys of the budget."""
        return {"keys": budget.keys}

    @property
    def rule(self) -> Rule:
        return partial(select_largest, count=self.keys)

    def why_no_starts(self) -> str | None:
        return None

    def pairs(self, n: int, m: int, causal: bool) -> int:
        if not causal:
            return n * min(m, self.keys)
        return sum(min(max(m - n + i + 1, 0), self.keys) for i in range(n))
