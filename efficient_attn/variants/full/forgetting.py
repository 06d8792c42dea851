"""Forgetting attention."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract import Growth, Input, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, blank_before_start, preallocate
from ...kernels import fla_backend
from ...kernels.dense import expand_heads, masked_softmax, widen
from ...kernels.softmax import forget_gates
from ...patterns.pair_counts import count_possible_pairs
from ..fla_attention import FlaAttention

GATE_OFFSET = 4.0  # gates of layers and samples begin at sigmoid(4), .98: the decay of a few hundred positions


def forget_gate(x: Tensor) -> Tensor:
    """log(sigmoid(x + 4))."""
    return F.logsigmoid(x + GATE_OFFSET)


@dataclass(frozen=True)
class ForgettingCache(KVCache):
    """A cache with the sums of gates ``[B, Hkv, capacity]``, in float64, because they grow with the length."""

    sums: Tensor | None = None

    def append_gates(self, k: Tensor, v: Tensor, log_forget: Tensor) -> Self:
        """Append T positions."""
        sums, gates = self.sums, blank_before_start(self, log_forget[..., None])[..., 0].double()
        if sums is None:
            sums = gates.new_zeros(*gates.shape[:2], self.capacity)
        gates = gates.cumsum(-1)
        if self.length:
            gates = gates + sums[..., self.length - 1 : self.length]
        appended = self.append(k, v)
        sums[..., self.length : appended.length] = gates
        return replace(appended, sums=sums)


class Forgetting(FlaAttention):
    """softmax(q_i . k_j / sqrt(D) + c_i - c_j) v with c_t = sum of log f_s over s <= t: exact softmax whose keys fade
    by gates f in (0, 1] of the positions between (FoX, the Forgetting Transformer, Lin et al. 2025, arXiv:2503.02130).

    Calls take ``log_forget [B, Hkv, M]``, log f, at most 0; with zeros it is `full`. Causal only. Backends: ``sdpa``,
    torch's fused kernel on blocks of rows; ``fla``, flash-linear-attention's kernel for whole sequences on CUDA.
    """

    backends = ("sdpa", "fla", "dense")
    fla_padding = False  # keys of zeros have weights
    declared = Traits(bidirectional=False, positional=True, inputs={"log_forget": Input("key", squash=forget_gate)})

    @property
    def traits(self) -> Traits:
        return self.narrow(self.declared)

    @property
    def absolute(self) -> bool:
        return False  # gates decay with distances

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", count_possible_pairs)

    def pairs(self, n: int, m: int, causal: bool) -> int | None:
        return count_possible_pairs(n, m, causal)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        """Also keys with one more column, and values as wide, some times over in the backward pass of a block."""
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        copies = shape.batch * shape.kv_heads * shape.m * (shape.head_dim + 1) * itemsize
        return size + (6 if training else 3) * copies

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        sums = expand_heads(self._sum_gates(inputs["log_forget"]), heads)
        rows = mask.positions(n, m, device=q.device).clamp(0, m - 1)
        scores = widen(q) @ widen(expand_heads(k, heads)).mT * q.shape[3] ** -0.5
        scores = scores + (sums[..., rows, None] - sums[..., None, :]).to(scores.dtype)
        allowed = mask.dense(n, m, device=q.device)
        return (masked_softmax(scores, allowed) @ widen(expand_heads(v, heads))).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if self.runs_fla(q, k, v, mask, **inputs):
            return fla_backend.attend_forgetting(q, k, v, inputs["log_forget"])
        return forget_gates.attend(q, k, v, self._sum_gates(inputs["log_forget"]), mask)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> ForgettingCache:
        sizes = self.dims.cache_sizes(batch, self.kv_heads)
        cache = preallocate(ForgettingCache(max_len), sizes, dtype, device)
        if cache.keys is None:
            return cache
        return replace(cache, sums=torch.zeros(*cache.keys.shape[:3], dtype=torch.float64, device=device))

    def why_no_starts(self) -> str | None:
        return None

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: ForgettingCache, **inputs: Tensor
    ) -> tuple[Tensor, ForgettingCache]:
        state = state.append_gates(k, v, inputs["log_forget"])
        assert state.sums is not None
        return forget_gates.attend(q, *state.filled(), state.sums[..., : state.length], state.mask), state

    def absorb(self, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> Any:
        return state.append_gates(k, require_values(v), inputs["log_forget"])

    def _sum_gates(self, log_forget: Tensor) -> Tensor:
        return log_forget.double().cumsum(-1)
