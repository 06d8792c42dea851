"""DeepSeek sparse attention."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ...contract import Budget, Growth, Input, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, allocate, blank_before_start, preallocate
from ...errors import check_at_least_one
from ...kernels.dense import softmax_attention
from ...kernels.indexer import (
    LONG_CALL,
    attend_few,
    attend_indexed,
    compute_indexer_loss,
    score_keys,
    select_exactly,
)
from ...kernels.selected_keys import estimate_rows_bytes
from ...patterns.pair_counts import count_possible_pairs
from .selected_attention import SelectedAttention

SELECTION_COST = 0.5  # of a key, in pairs of a head of 64
FEW_ROWS = 4  # queries of a step for which only the selected keys are read, whatever their number


@dataclass(frozen=True)
class IndexedCache(KVCache):
    """All keys and values so far, and the keys of the indexer, ``[B, 1, capacity, width]``."""

    index_keys: Tensor | None = None

    def append_all(self, k: Tensor, v: Tensor, index_k: Tensor) -> Self:
        """Append T positions."""
        state = self.append(k, v)
        index_keys = allocate(self.index_keys, index_k, self.capacity)
        index_keys[:, :, self.length : state.length] = blank_before_start(self, index_k)
        return replace(state, index_keys=index_keys)


class DSA(SelectedAttention):
    """Softmax over those ``topk`` keys, of all up to the query's own, for which a small indexer has the largest

        I_ts = sum_j w_tj relu(qI_tj . kI_s)

    the same keys for all heads (DeepSeek sparse attention, DeepSeek-V3.2, arXiv:2512.02556).

    Calls take ``index_q [B, 1, N, index_heads, index_dim]``, ``index_w [B, 1, N, index_heads]`` and ``index_k [B, 1, M,
    index_dim]``. They have no gradient by the output: a loss of its own trains the indexer (`auxiliary_loss`), and
    until `train_selections` layers leave it as it is drawn. Of equal scores the first keys. The indexer computes in
    float64, every query with every key before it.

    Causal only. It keeps all keys and values, and the indexer's keys; a decode step reads the latter and the selected
    keys. Up to 160 times as many keys as it selects, a call computes all scores and hides those of other keys,
    which is faster (backend ``keys``).
    """

    backends = ("keys", "dense")

    def __init__(self, *, topk: int = 128, index_heads: int = 4, index_dim: int = 32) -> None:
        super().__init__()
        check_at_least_one("dsa", topk=topk, index_heads=index_heads, index_dim=index_dim)
        self.topk, self.index_heads, self.index_dim = topk, index_heads, index_dim
        inputs = {
            "index_q": Input("query", per_head=False, tail=(index_heads, index_dim), gradient=False),
            "index_w": Input("query", per_head=False, tail=(index_heads,), gradient=False),
            "index_k": Input("key", per_head=False, tail=(index_dim,), gradient=False),
        }
        self._traits = Traits(exact=True, bidirectional=False, inputs=inputs)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        return {"topk": budget.keys}

    @property
    def traits(self) -> Traits:
        return self._traits

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", self._cost, self._step_cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """The indexer's scores, and the computed pairs; those of gathered keys take as long as all pairs of `LONG_CALL`
        times as many keys."""
        pairs = count_possible_pairs(n, m, causal)
        return self._index_cost * pairs + min(pairs, n * self.topk * LONG_CALL / 2)

    def _step_cost(self, m: int) -> float:
        return self._index_cost * m + min(m, self.topk)

    @property
    def _index_cost(self) -> float:
        """Of one score of the indexer, in pairs of a head of 64: its products, and the selection."""
        return self.index_heads * self.index_dim / 128 + SELECTION_COST

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        selection = select_exactly(score_keys(*_index(inputs)), allowed[:, 0], self.topk)
        return softmax_attention(q, k, v, allowed & selection[:, None])

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend_indexed(q, k, v, mask, _index(inputs), self.topk)

    def auxiliary_loss(self, q: Tensor, k: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        """The divergence KL(p_t, softmax(I_t)) of the indexer from the weights of `full`, p_t, summed over heads and
        divided by their sum; the mean of all queries that see a key. Its gradient is by the indexer's inputs only.

        It is the paper's loss over all keys, with which an indexer begins; its later one is over the selected keys.
        """
        return compute_indexer_loss(q.detach(), k.detach(), mask, _index(inputs))

    def pairs(self, n: int, m: int, causal: bool) -> int:
        return sum(min(i + 1, self.topk) for i in range(max(m - n, 0), m))

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return n * self.topk if m > LONG_CALL * self.topk else count_possible_pairs(n, m, causal)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        return size + estimate_rows_bytes(shape.batch, self.index_heads, shape.m, training=False)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> IndexedCache:
        sizes = self.dims.cache_sizes(batch, self.kv_heads)
        state = preallocate(IndexedCache(max_len), sizes, dtype, device)
        if state.keys is None:
            return state
        return replace(state, index_keys=state.keys.new_zeros(batch, 1, max_len, self.index_dim))

    def why_no_starts(self) -> str | None:
        return None

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: IndexedCache, **inputs: Tensor
    ) -> tuple[Tensor, IndexedCache]:
        state = state.append_all(k, v, inputs["index_k"])
        keys, values = state.filled()
        assert state.index_keys is not None
        inputs = {**inputs, "index_k": state.index_keys[:, :, : state.length]}
        if self.backend == "dense" or q.shape[2] > FEW_ROWS:
            return self.run(q, keys, values, state.mask, **inputs), state
        return attend_few(q, keys, values, state.mask, _index(inputs), self.topk), state

    def absorb(self, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> IndexedCache:
        return state.append_all(k, require_values(v), inputs["index_k"])


def _index(inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The indexer's queries, weights and keys, without the dimension of heads."""
    return inputs["index_q"][:, 0], inputs["index_w"][:, 0], inputs["index_k"][:, 0]
