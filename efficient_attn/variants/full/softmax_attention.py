"""Exact softmax attention over all keys, and its decoding from a cache."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from ...contract import Attention, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, preallocate
from ...kernels.dense import softmax_attention
from ...kernels.native.building import why_no_native
from ...kernels.softmax.sdpa import attend
from ...patterns.pair_counts import count_possible_pairs

# created once, because every call reads them
TRAITS_WITH_DROPOUT, TRAITS_WITHOUT_DROPOUT = (Traits(exact=True, dropout=dropout) for dropout in (True, False))
FUSED_TRAINING_WORKSPACE = 4.5  # in multiples of the output's size: torch's kernel stores no more than necessary


class SoftmaxAttention(Attention):
    """softmax(q k^T / sqrt(D)) v over every key that the mask allows. With p for these pairs, the reference is

        w = einsum("bhnd,bhmd->bhnm", q, k).div(D**0.5).masked_fill(~p, -inf).softmax(-1)
        out = einsum("bhnm,bhme->bhne", w, v)

    Backends: ``sdpa``, torch's fused kernels, in decode steps over long caches the fastest of several kernels (see
    `kernels.softmax.decode`); ``cpp``, the same with all decode steps in one pass of C++, for the CPU without dropout,
    built if it is not there.
    """

    backends = ("sdpa", "cpp", "dense")
    only_on: ClassVar[Mapping[str, str]] = {"cpp": "cpu"}

    def why_not(self, backend: str) -> str | None:
        return why_no_native("decode") if backend == "cpp" else None

    @property
    def traits(self) -> Traits:
        cls, base = type(self), SoftmaxAttention
        inherits_dropout = cls.compute is base.compute and cls.oracle is base.oracle
        return TRAITS_WITH_DROPOUT if inherits_dropout and self.backend != "cpp" else TRAITS_WITHOUT_DROPOUT

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", count_possible_pairs)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        return softmax_attention(q, k, v, allowed, dropout=self.dropping)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend(q, k, v, mask, native=self.backend == "cpp", dropout=self.dropping)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        if training and self.backend == "sdpa":
            size = int(FUSED_TRAINING_WORKSPACE * shape.batch * shape.heads * shape.n * shape.value_dim * itemsize)
        if self.backend != "sdpa" or shape.head_dim == shape.value_dim:
            return size
        # the kernel's tensors have one width: keys and queries, or values and outputs, are copied into wider ones
        padded = max(shape.head_dim, shape.value_dim)
        copies = shape.batch * (shape.heads * shape.n + shape.kv_heads * shape.m) * padded * itemsize
        return size + (2 if training else 1) * copies

    def pairs(self, n: int, m: int, causal: bool) -> int | None:
        return count_possible_pairs(n, m, causal)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
        return preallocate(KVCache(max_len), self.dims.cache_sizes(batch, self.kv_heads), dtype, device)

    def why_no_starts(self) -> str | None:
        return None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor) -> tuple[Tensor, KVCache]:
        state = state.append(k, v)
        return self.run(q, *state.filled(), state.mask), state

    def absorb(self, k: Tensor, v: Values, state: KVCache, **inputs: Tensor) -> KVCache:
        return state.append(k, require_values(v))
