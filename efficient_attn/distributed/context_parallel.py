"""A mechanism over a sequence that is spread over the ranks of a process group: four schemes, and what they support."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from ..contract import Attention, Mask, Values, require_values
from ..contract.autocast import is_autocast_enabled, run_under_autocast
from ..contract.call_checks import find_accepted
from ..contract.mask import zero_invalid
from ..errors import UnsupportedError, UsageError, make_unknown_error
from ..kernels.derivatives import wants_gradient
from ..variants.full.softmax_attention import SoftmaxAttention
from ..variants.linear.linear_attention import LinearAttention
from .collectives import Ranks, check_agreement, get_ranks
from .halo import attend_with_halo, find_halo
from .head_exchange import attend_by_heads
from .ring import ring_attention
from .sequence_parts import Order, list_positions, list_starts
from .state_passing import attend_with_states, why_no_states

Scheme = Literal["ring", "heads", "halo", "state"]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
UNSUPPORTED_FIELDS = ("query_start", "query_positions", "cu_seqlens")


@dataclass(frozen=True)
class ContextParallel:
    """How a layer attends to a sequence of which each rank of a process group has a part.

    scheme: ``ring`` passes keys and values around (exact attention; Liu et al. 2023, arXiv:2310.01889), ``heads``
    exchanges heads for positions (mechanisms whose heads are alike; Jacobs et al. 2023, arXiv:2309.14509), ``halo``
    sends the keys near a part (windows), and ``state`` the state after a part (linear and recurrent mechanisms; Sun et
    al. 2024, arXiv:2404.02882). group: by default all processes.

    All ranks make the same calls, forward and backward, with parts of equal shapes. Parts are in contiguous order, but
    with ``ring`` and a causal mask in zigzag order (`order`, `split_sequence`). In a mask, ``key_mask`` is that of the
    part, and ``key_lengths`` and ``query_lengths`` count positions of the whole sequence.
    """

    scheme: Scheme
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        if self.scheme not in get_args(Scheme):
            raise make_unknown_error("context_parallel", self.scheme, get_args(Scheme))

    def order(self, causal: bool) -> Order:
        """The order of positions over ranks."""
        return "zigzag" if causal and self.scheme == "ring" else "contiguous"

    def check(self, attn: Attention) -> None:
        """Raise `UnsupportedError` for a mechanism that the scheme does not support."""
        reasons = {"ring": _why_no_ring, "heads": _why_no_heads, "halo": _why_no_halo, "state": _why_no_state}
        if reason := reasons[self.scheme](attn):
            raise UnsupportedError(f"{attn.label} does not support context_parallel={self.scheme!r}: {reason}")

    def list_starts(self, n: int, m: int, causal: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The positions in the whole sequence of the first query and of the first key of each chunk of this rank, which
        has n queries and m keys."""
        ranks, order = get_ranks(self.group), self.order(causal)
        offset = ranks.size * (m - n)  # the last query is aligned with the last key
        return tuple(start + offset for start in list_starts(n, ranks, order)), list_starts(m, ranks, order)

    def attend(self, attn: Attention, q: Tensor, k: Tensor, v: Values, mask: Mask, **inputs: Tensor) -> Tensor:
        """The rows of ``q [B, H, N, D]`` over the keys of all ranks: k ``[B, Hkv, M, D]``, v ``[B, Hkv, M, E]``. Raises
        `UsageError` for calls that do not fit, and `UnsupportedError` for features that are not supported."""
        if torch.compiler.is_compiling():
            from .uncompiled import call_uncompiled

            return call_uncompiled(self.attend, attn, q, k, v, mask, **inputs)
        if is_autocast_enabled(q):
            return run_under_autocast(partial(self.attend, attn), q, k, v, mask, inputs=inputs)
        v = require_values(v)
        ranks = get_ranks(self.group)
        self.check(attn)
        self._check_call(attn, q, k, v, mask, inputs, ranks)
        order, causal = self.order(mask.causal), mask.causal
        key_valid, query_valid = (
            _find_valid(own_mask, lengths, x, list_positions(x.shape[2], ranks, order, x.device), ranks)
            for own_mask, lengths, x in ((mask.key_mask, mask.key_lengths, k), (None, mask.query_lengths, q))
        )
        q, k, v = zero_invalid(q, query_valid), zero_invalid(k, key_valid), zero_invalid(v, key_valid)
        if self.scheme == "ring":
            out = ring_attention(q, k, v, causal=causal, valid=key_valid, order=order, group=ranks.group)
        elif self.scheme == "heads":

            def attend(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
                return _take_heads(attn, ranks.size)(q, k, v, Mask(causal, key_mask=valid))

            out = attend_by_heads(attend, q, k, v, key_valid, ranks)
        elif self.scheme == "halo":
            out = attend_with_halo(attn, q, k, v, key_valid, causal, ranks)
        else:
            sides = {name: query_valid if i.side == "query" else key_valid for name, i in attn.traits.inputs.items()}
            inputs = {name: zero_invalid(x, sides[name]) for name, x in inputs.items()}
            out = attend_with_states(attn, q, k, v, key_valid, causal, ranks, **inputs)
        return zero_invalid(out, query_valid)

    def _check_call(
        self, attn: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask, inputs: dict[str, Tensor], ranks: Ranks
    ) -> None:
        for name in UNSUPPORTED_FIELDS:
            if getattr(mask, name) is not None:
                raise UnsupportedError(f"context_parallel={self.scheme!r} does not support Mask({name}=...)")
        _, shape, *_ = find_accepted(attn, q, k, v, Mask(mask.causal), inputs)
        if shape.n < 1 or shape.m < 1 or shape.batch < 1:
            raise UsageError(
                f"each rank needs a part of at least one position, got q {list(q.shape)} k {list(k.shape)}"
            )
        if shape.n != shape.m and (mask.causal or self.scheme in ("halo", "state")):
            cause = "a causal mask" if mask.causal else f"context_parallel={self.scheme!r}"
            raise UsageError(f"{cause} needs as many queries as keys on each rank, got {shape.n} and {shape.m}")
        if self.scheme == "state" and attn.absolute and mask.key_mask is not None:
            raise UnsupportedError(f"{attn.label} counts positions from a row's first key, which only one rank knows")
        max_len, length = attn.dims.max_len, shape.m * ranks.size
        bounded = isinstance(attn, LinearAttention) and attn.feature_map.positional and max_len is not None
        if self.scheme == "state" and bounded and length > (max_len or 0):
            raise UsageError(f"{attn.label}: made for {max_len} positions (dims.max_len), all ranks have {length}")
        facts = {"B": shape.batch, "H": shape.heads, "Hkv": shape.kv_heads, "N": shape.n, "M": shape.m}
        facts |= {"D": shape.head_dim, "E": shape.value_dim, "dtype": DTYPES.index(q.dtype), "causal": mask.causal}
        gradient = wants_gradient(q, k, v, *inputs.values())
        check_agreement(ranks, q.device, **facts, padding=mask.pads_keys, gradient=gradient)


def make_context_parallel(value: Scheme | ContextParallel, attn: Attention) -> ContextParallel:
    """The value of a layer's option. Raises `UnsupportedError` for a mechanism that the scheme does not support."""
    parallel = value if isinstance(value, ContextParallel) else ContextParallel(value)
    parallel.check(attn)
    return parallel


def _find_valid(
    part_mask: Tensor | None, lengths: Tensor | None, x: Tensor, positions: Tensor, ranks: Ranks
) -> Tensor | None:
    """``[B, length]`` bool: which positions of a part x are valid. lengths: ``[B]``, of the whole sequence."""
    if part_mask is not None and part_mask.shape != (x.shape[0], x.shape[2]):
        expected = f"this rank's part, {[x.shape[0], x.shape[2]]}"
        raise UsageError(f"Mask: key_mask must have the shape of {expected}, got {list(part_mask.shape)}")
    if lengths is None:
        return part_mask
    total = x.shape[2] * ranks.size
    if lengths.shape != (x.shape[0],) or bool((lengths < 0).any()) or bool((lengths > total).any()):
        raise UsageError(f"Mask: lengths count the whole sequence, {x.shape[0]} integers in [0, {total}]")
    in_length = positions < lengths[:, None]
    return in_length if part_mask is None else in_length & part_mask


def _take_heads(attn: Attention, size: int) -> Attention:
    """The mechanism for 1/size of the heads."""
    dims = attn.dims
    if size == 1 or (dims.heads is None and dims.kv_heads is None):
        return attn
    part = copy(attn)
    heads, kv_heads = (None if x is None else x // size for x in (dims.heads, dims.kv_heads))
    part.dims = replace(dims, heads=heads, kv_heads=kv_heads)
    if part.kv_heads != kv_heads:
        raise UnsupportedError(f"{attn.label} requires {part.kv_heads} key-value heads; use full with kv_heads")
    return part


def _why_no_ring(attn: Attention) -> str | None:
    if not attn.traits.exact or type(attn).compute is not SoftmaxAttention.compute:
        return "only exact softmax attention over all keys can be joined from parts"
    if attn.backend != "sdpa":
        return f"parts are computed by backend 'sdpa', not {attn.backend!r}"
    return "parts have no dropout of weights; use 'heads'" if attn.dropout else None


def _why_no_heads(attn: Attention) -> str | None:
    traits = attn.traits
    alike = traits.exact or (isinstance(attn, LinearAttention) and type(attn).rates is LinearAttention.rates)
    if not alike or traits.mixes_heads or next(attn.parameters(), None) is not None:
        return "its heads differ, or decide together"
    if traits.inputs or not (traits.values and traits.cross):
        return "it takes further inputs, or no keys and values of its own"
    return None


def _why_no_halo(attn: Attention) -> str | None:
    if find_halo(attn, causal=True) is None and find_halo(attn, causal=False) is None:
        return "its queries see keys at any distance"
    return None


def _why_no_state(attn: Attention) -> str | None:
    if attn.backend == "dense":
        return "its backend 'dense' needs all keys at once"
    return why_no_states(attn)
