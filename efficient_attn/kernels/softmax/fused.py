"""torch's fused attention for plain tensors, with a backward pass of our own where torch's is slow or large.

Half precision: torch's own backward pass of bfloat16 takes six times as long as float32's where the processor has no
products of it. Here q, k and v are cast for a pass, forwards and backwards, and what is kept in between has their own
dtype. Grouped heads: the fused kernel takes keys that heads share by stride zero, but its backward pass returns
gradients by them for every head, which autograd then sums: twice the keys repeated for each head. Here the backward
pass takes some heads of a group at a time. Later versions of that kernel know groups themselves, a key-value head a
thread: where that keeps all threads busy they are asked.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..derivatives import SoftmaxFunction, make_softmax_op
from ..half import fused_dtype
from ..traced import transformed
from . import merge

LARGE = 2**18  # numbers of queries and keys from which on a copy costs more than a few views
SHARE = 4  # of a group's heads, so many parts at least: their gradients are then half of the keys repeated for each

# whether torch is a version in which the kernel was seen to take groups, with gradients that no head has alone
KNOWS_GROUPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Softmax attention of ``q [B, H, N, D]`` over ``k, v [B, H, M, D]``. allowed: bool, ``[1 or B, 1, 1 or N, M]``."""
    inner = [fused_dtype(q, part, q.shape[2], k.shape[2]) for part in ("forward", "backward")]
    if inner == [q.dtype, q.dtype] or (dropout and inner[1] == q.dtype):
        return _ask_torch(q, k, v, allowed, causal, scale, dropout)
    if dropout or not wants_gradient(q, k, v):
        wide = (x.to(inner[1] if dropout else inner[0]) for x in (q, k, v))
        found = F.scaled_dot_product_attention(
            *wide, attn_mask=allowed, dropout_p=dropout, is_causal=causal, scale=scale
        )
        return found.to(q.dtype)
    return differentiable(q, k, v, allowed, causal, scale)


def _ask_torch(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """torch's own call, heads as rows of the batch where gradients are large: it lays them out position by position,
    all heads of one together, and tensors that have heads first need copies of them then."""
    ask = partial(F.scaled_dot_product_attention, attn_mask=allowed, dropout_p=dropout, is_causal=causal, scale=scale)
    alike = q.shape[:2] == k.shape[:2] and (allowed is None or len(allowed) == 1)
    if not (alike and wants_gradient(q, k, v) and k.numel() + q.numel() >= LARGE):
        return ask(q, k, v)
    rows, keys, values = (x.flatten(0, 1)[:, None] for x in (q, k, v))
    return ask(rows, keys, values).unflatten(0, q.shape[:2]).squeeze(2)


def differentiable(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float) -> Tensor:
    """`attend`, without dropout, by our own backward pass; k and v may have one head for all of q's."""
    added = None if allowed is None else additive(allowed, fused_dtype(q, "forward", q.shape[2], k.shape[2]))
    run = _fused if torch.compiler.is_compiling() else Fused.apply
    return cast(tuple[Tensor, Tensor], run(*(in_rows(x) for x in (q, k, v)), added, causal, scale))[0]


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether autograd is to follow a call with these tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def takes_groups(q: Tensor, k: Tensor) -> bool:
    """Whether torch's kernel takes the groups as they are. Half precision is summed up in float32, here."""
    if torch.compiler.is_compiling() or transformed():
        return False
    known = KNOWS_GROUPS and q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    return known and k.shape[0] * k.shape[1] >= torch.get_num_threads()


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, minus infinity elsewhere."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, float("-inf"))


def in_rows(x: Tensor) -> Tensor:
    """x in rows without gaps, which the kernel takes for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def attend_with_lse(
    q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exps, without a gradient. k and v may have one head for all of q's. added: `additive`'s."""
    inner = fused_dtype(q, "forward", q.shape[2], k.shape[2])
    rows, keys, values = (x.to(inner) for x in (q, k, v))
    if not _has_its_own(q, k):
        keys, values = (x.expand(-1, q.shape[1], -1, -1) for x in (keys, values))
    out, lse = merge.attend(rows, keys, values, _cast(added, inner), scale, causal)
    return out.to(q.dtype), lse


def gradients_with_lse(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """By q, k and v, of keys that are all that there is or a part of it: out and lse are those of the whole."""
    inner = fused_dtype(q, "backward", q.shape[2], k.shape[2])
    grad, keys, values, added = in_rows(grad), k.to(inner), v.to(inner), _cast(added, inner)
    if _has_its_own(q, k):
        by_out, rows, found = (x.to(inner) for x in (grad, q, out))
        by_q, by_k, by_v = merge.attend_backward(by_out, rows, keys, values, found, lse, added, scale, causal)
        return by_q.to(q.dtype), by_k.to(k.dtype), by_v.to(v.dtype)
    heads = q.shape[1]
    step = max(1, min(-(-torch.get_num_threads() // len(q)), heads // SHARE))  # the kernel runs a head a thread
    by_q = torch.empty_like(q)
    sums = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v)]
    for first in range(0, heads, step):
        these = slice(first, first + step)
        by_out, rows, found = (x[:, these].to(inner) for x in (grad, q, out))
        key, value = (x.expand(-1, rows.shape[1], -1, -1) for x in (keys, values))
        by_q[:, these], *by_keys = merge.attend_backward(
            by_out, rows, key, value, found, lse[:, these], added, scale, causal
        )
        for total, by_key in zip(sums, by_keys, strict=True):
            total += by_key.sum(1, keepdim=True, dtype=total.dtype)
    return by_q, sums[0].to(k.dtype), sums[1].to(v.dtype)


def _has_its_own(q: Tensor, k: Tensor) -> bool:
    """Whether the kernel finds the keys of a head by itself; else k has one head."""
    return k.shape[1] == q.shape[1] or k.shape[1] > 1 or takes_groups(q, k)


def _cast(added: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if added is None else added.to(dtype)


class Fused(SoftmaxFunction):
    """``(q, k, v, additive mask, causal, scale)``; k and v have q's heads, or one for all of them."""

    kernel = "torch's fused kernel"
    forward = staticmethod(attend_with_lse)
    gradients = staticmethod(gradients_with_lse)


_fused: Any = make_softmax_op("fused", attend_with_lse, gradients_with_lse)
