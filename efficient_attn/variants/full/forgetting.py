"""Forgetting attention."""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract import Input, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, RollingCache, blank_before_start, preallocate
from ...kernels import fla_backend
from ...kernels.dense import expand_heads, masked_softmax, widen
from ...kernels.softmax import forget_gates
from ...kernels.softmax.score_tiles import UNBOUNDED
from ..fla_attention import FlaAttention
from .windowed_softmax import WindowedSoftmax

GATE_OFFSET = 4.0  # gates of layers and samples begin at sigmoid(4), .98: the decay of a few hundred positions


def forget_gate(x: Tensor) -> Tensor:
    """log(sigmoid(x + 4))."""
    return F.logsigmoid(x + GATE_OFFSET)


@dataclass(frozen=True)
class ForgettingCache(KVCache):
    """A cache with the sums of gates ``[B, Hkv, capacity]``, in float64, because they grow with the length."""

    sums: Tensor | None = None

    def extend_sums(self, k: Tensor, v: Tensor, log_forget: Tensor) -> tuple[Tensor, Tensor, Tensor, Mask, Self]:
        """Keys, values and sums after T more positions, the mask of their queries, and the state with them."""
        appended, end = self.append(k, v), self.length + k.shape[2]
        past = None if self.sums is None or not self.length else self.sums[..., self.length - 1 : self.length]
        new_sums = _sum_gates(self, past, log_forget)
        sums = new_sums.new_zeros(*new_sums.shape[:2], self.capacity) if self.sums is None else self.sums
        sums[..., self.length : end] = new_sums
        return *appended.filled(), sums[..., :end], appended.mask, replace(appended, sums=sums)


@dataclass(frozen=True, kw_only=True)
class ForgettingRing(RollingCache):
    """The last positions, with the sums of gates up to each of them ``[B, Hkv, capacity]``, the newest last."""

    sums: Tensor | None = None

    def extend_sums(self, k: Tensor, v: Tensor, log_forget: Tensor) -> tuple[Tensor, Tensor, Tensor, Mask, Self]:
        """As that of `ForgettingCache`."""
        keys, values, mask = self.extend(k, v)
        stored = log_forget.new_zeros(*k.shape[:2], self.slots).double() if self.sums is None else self.sums
        sums = torch.cat([stored, _sum_gates(self, stored[..., -1:], log_forget)], -1)
        state = replace(self.append(k, v), sums=stored.copy_(sums[..., -self.slots :]))
        return keys, values, sums[..., -keys.shape[2] :], mask, state


def _sum_gates(state: KVCache, past: Tensor | None, log_forget: Tensor) -> Tensor:
    """The sums up to each of T positions, from those of the last one before."""
    sums = blank_before_start(state, log_forget[..., None])[..., 0].double().cumsum(-1)
    return sums if past is None else sums + past


ForgettingState = ForgettingCache | ForgettingRing


class Forgetting(FlaAttention, WindowedSoftmax):
    """softmax(q_i . k_j / sqrt(D) + c_i - c_j) v with c_t = sum of log f_s over s <= t: exact softmax whose keys fade
    by gates f in (0, 1] of the positions between (FoX, the Forgetting Transformer, Lin et al. 2025, arXiv:2503.02130).

    Calls take ``log_forget [B, Hkv, M]``, log f, at most 0; with zeros it is `full`. Causal only. window: a query sees
    the keys within so many positions, as in `sliding_window`, and decode states have no others.

    Backends: ``sdpa``, torch's fused kernel on blocks of rows; ``fla``, flash-linear-attention's kernel for whole
    sequences on CUDA without a window.
    """

    backends = ("sdpa", "fla", "dense")
    fla_padding = False  # keys of zeros have weights
    declared = Traits(bidirectional=False, positional=True, inputs={"log_forget": Input("key", squash=forget_gate)})

    def __init__(self, *, window: int | None = None) -> None:
        super().__init__(window)

    def why_no_kernel(self) -> str | None:
        return None if self.window is None else "flash-linear-attention's kernel has no window"

    @property
    def traits(self) -> Traits:
        return self.narrow(self.declared)

    @property
    def absolute(self) -> bool:
        return False  # gates decay with distances

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        """Also keys with one more column, and values as wide, some times over in the backward pass of a block."""
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        copies = shape.batch * shape.kv_heads * shape.m * (shape.head_dim + 1) * itemsize
        return size + (6 if training else 3) * copies

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        sums = expand_heads(inputs["log_forget"].double().cumsum(-1), heads)
        rows = mask.positions(n, m, device=q.device).clamp(0, m - 1)
        scores = widen(q) @ widen(expand_heads(k, heads)).mT * q.shape[3] ** -0.5
        scores = scores + (sums[..., rows, None] - sums[..., None, :]).to(scores.dtype)
        allowed = self.find_allowed(mask, n, m, q.device)
        return (masked_softmax(scores, allowed) @ widen(expand_heads(v, heads))).to(q.dtype)

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        if self.runs_fla(q, k, v, mask, **inputs):
            return fla_backend.attend_forgetting(q, k, v, inputs["log_forget"])
        return self._attend(q, k, v, inputs["log_forget"].double().cumsum(-1), mask)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> ForgettingState:
        cache = ForgettingCache(max_len)
        if self.window is not None:
            cache = ForgettingRing(min(self.window + 1, max_len), max_len=max_len)
        cache = preallocate(cache, self.dims.cache_sizes(batch, self.kv_heads), dtype, device)
        if cache.keys is None:
            return cache
        return replace(cache, sums=torch.zeros(*cache.keys.shape[:3], dtype=torch.float64, device=device))

    def why_no_starts(self) -> str | None:
        return None

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **inputs: Tensor) -> tuple[Tensor, Any]:
        keys, values, sums, mask, state = state.extend_sums(k, v, inputs["log_forget"])
        return self._attend(q, keys, values, sums, mask), state

    def absorb(self, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> Any:
        return state.extend_sums(k, require_values(v), inputs["log_forget"])[-1]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sums: Tensor, mask: Mask) -> Tensor:
        return forget_gates.attend(q, k, v, sums, mask, UNBOUNDED if self.window is None else self.window)
