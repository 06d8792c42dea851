"""Exact softmax attention over all keys, and its decoding from a cache."""

from collections.abc import Mapping
from itertools import product
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from ...contract import Attention, CallFacts, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, preallocate
from ...kernels.dense import softmax_attention
from ...kernels.native.building import why_no_native
from ...kernels.softmax import sdpa_kernels, varlen
from ...kernels.softmax.sdpa import attend
from ...patterns.pair_counts import count_possible_pairs

ON_GPU = (*sdpa_kernels.KERNELS, "varlen")
WITHOUT_DROPOUT, WITHOUT_PADDING = ("cpp", "varlen", "flash3", "flash4"), tuple(sdpa_kernels.IMPLEMENTATIONS)
FUSED_TRAINING_WORKSPACE = 4.5  # in multiples of the output's size: torch's kernel stores no more than necessary


# by exactness, dropout and padding; created once, because every call reads them
TRAITS = {x: Traits(exact=x[0], dropout=x[1], padding=x[2]) for x in product((True, False), repeat=3)}


class SoftmaxAttention(Attention):
    """softmax(q k^T / sqrt(D)) v over every key that the mask allows. With p for these pairs, the reference is

        w = einsum("bhnd,bhmd->bhnm", q, k).div(D**0.5).masked_fill(~p, -inf).softmax(-1)
        out = einsum("bhnm,bhme->bhne", w, v)

    Backends: ``sdpa``, torch's fused kernels, in decode steps over long caches the fastest of several kernels (see
    `kernels.softmax.decode`), on a GPU in half precision flash attention or cuDNN's kernel, whichever was faster, and
    ``varlen`` with padding or packed sequences; `what_runs` tells which. ``cpp``, the same with all decode steps in one
    pass of C++, for the CPU without dropout, built if it is not there. For a GPU only, torch's kernels by name, which
    refuse what they cannot compute: ``flash``, ``cudnn``, ``efficient`` and ``math``; ``flash3`` and ``flash4`` where
    torch has activated FlashAttention 3 or 4; ``varlen``, torch's varlen_attn.
    """

    backends = ("sdpa", *ON_GPU, "cpp", "dense")
    only_on: ClassVar[Mapping[str, str]] = {"cpp": "cpu", **dict.fromkeys(ON_GPU, "cuda")}

    def why_not(self, backend: str) -> str | None:
        if backend == "varlen":
            return varlen.why_absent()
        return why_no_native("decode") if backend == "cpp" else sdpa_kernels.why_not_active(backend)

    @property
    def traits(self) -> Traits:
        cls, base = type(self), SoftmaxAttention
        inherits_dropout = cls.compute is base.compute and cls.oracle is base.oracle
        has_dropout = inherits_dropout and self.backend not in WITHOUT_DROPOUT
        return TRAITS[True, has_dropout, self.backend not in WITHOUT_PADDING]

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N^2)" if self.backend == "math" else "O(N)", count_possible_pairs)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        return softmax_attention(q, k, v, allowed, dropout=self.dropping)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend(q, k, v, mask, backend=self.backend, dropout=self.dropping)

    def transforms(self) -> bool:
        """Whether queries or keys are changed before the kernel, so that padding has to be blanked."""
        return type(self).compute is not SoftmaxAttention.compute

    def masks_itself(self, q: Tensor, k: Tensor, v: Values, mask: Mask) -> bool:
        n, m = q.shape[2], k.shape[2]
        # queries that are padding are left out only where causality ends before them
        reads_queries = mask.query_lengths is not None and not (
            mask.causal and mask.query_lengths is mask.key_lengths and n == m and mask.start(n, m) == 0
        )
        if self.backend not in ("sdpa", "varlen") or self.transforms() or reads_queries:
            return False
        return varlen.is_default(q, k, require_values(v), mask, self.dropping)

    def what_runs(self, shape: Shape, **call: Unpack[CallFacts]) -> tuple[str, int | None]:
        backend, pairs = super().what_runs(shape, **call)
        kernels = sdpa_kernels.list_used(shape) if backend == "sdpa" and call["device"].type == "cuda" else []
        return ",".join(kernels) or backend, pairs

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        is_fused = self.backend not in ("cpp", "dense", "math")
        if training and is_fused:
            size = int(FUSED_TRAINING_WORKSPACE * shape.batch * shape.heads * shape.n * shape.value_dim * itemsize)
        if not is_fused or shape.head_dim == shape.value_dim:
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
        return "varlen takes lengths of rows only" if self.backend == "varlen" else None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: KVCache, **inputs: Tensor) -> tuple[Tensor, KVCache]:
        state = state.append(k, v)
        return self.run(q, *state.filled(), state.mask), state

    def absorb(self, k: Tensor, v: Values, state: KVCache, **inputs: Tensor) -> KVCache:
        return state.append(k, require_values(v))
