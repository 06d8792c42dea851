"""Grouped heads whose rows have masks of their own: keys are shared by stride zero, and so are their gradients.

torch's fused kernel takes keys that are shared, but its backward pass returns gradients by them for every head, which
autograd then sums: twice the keys repeated for each head. Here the backward pass takes some heads of a group at a time.
Later versions of that kernel know groups themselves, a key-value head a thread: where that keeps all threads busy they
are asked.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from ..half import fused_dtype
from ..traced import make_op, transformed
from . import fused
from .fused import additive, cast_mask, cast_rows

SHARE = 4  # of a group's heads, so many parts at least: their gradients are then half of the keys repeated for each

# whether torch is a version in which the kernel was seen to take groups, with gradients that no head has alone
KNOWS_GROUPS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def attend(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float = 0.0
) -> Tensor:
    """Softmax attention of ``q [B, H, N, D]`` over ``k, v [B, Hkv, M, D]``. allowed: bool, ``[1 or B, 1, N, M]``."""
    itself = not dropout and _takes_groups(q, k)
    if not itself and k.shape[1] > 1:
        return _attend_folded(q, k, v, allowed, causal, scale, dropout)
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if q.device.type == "cpu" and wanted and not dropout:
        added = None if allowed is None else additive(allowed, q.dtype)
        q, k, v = (cast_rows(x, q.dtype) for x in (q, k, v))
        run = _shared if torch.compiler.is_compiling() else _Shared.apply
        return cast(tuple[Tensor, Tensor], run(q, k, v, added, causal, scale))[0]
    if itself:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, is_causal=causal, scale=scale, enable_gqa=True
        )
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    return fused.attend(q, k, v, allowed=allowed, causal=causal, scale=scale, dropout=dropout)


def _attend_folded(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Groups as the heads of a larger batch, whose keys and values are one head's."""
    kv_heads = k.shape[1]
    keys, values = (x.reshape(-1, 1, *x.shape[2:]) for x in (k, v))
    if allowed is not None and allowed.shape[0] > 1:
        allowed = allowed.repeat_interleave(kv_heads, dim=0)
    rows = q.reshape(len(keys), -1, *q.shape[2:])
    return attend(rows, keys, values, allowed, causal, scale, dropout).reshape(q.shape)


def _takes_groups(q: Tensor, k: Tensor) -> bool:
    """Whether torch's kernel takes the groups as they are. Half precision is summed up in float32, here."""
    if torch.compiler.is_compiling() or transformed():
        return False
    known = KNOWS_GROUPS and q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    return known and k.shape[0] * k.shape[1] >= torch.get_num_threads()


class _Shared(KernelFunction):
    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        if k.shape[1] > 1 or _takes_groups(q, k):
            return kernel(q, k, v, 0.0, causal, attn_mask=added, scale=scale)
        inner, group = fused_dtype(q, "forward", q.shape[2], k.shape[2]), q.shape[1]
        keys, values = (x.to(inner).expand(-1, group, -1, -1) for x in (k, v))
        mask = cast_mask(added, inner)
        out, lse = kernel(q.to(inner), keys, values, 0.0, causal, attn_mask=mask, scale=scale)
        return out.to(q.dtype), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, causal, scale = inputs
        ctx.how = causal, scale
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = (grads[0], *ctx.saved_tensors, *ctx.how)
        return *differentiate_once("the kernel of grouped heads", gradients, *given), None, None, None

    @staticmethod
    def op_backward(ctx: Any, *grads: Tensor) -> Any:
        return *_shared_backward(grads[0], *ctx.saved_tensors, *ctx.how), None, None, None


def gradients(
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
    """Gradients by ``q [B, H, N, D]``, and by keys that a group shares. added: what was added to the scores."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    if k.shape[1] > 1 or _takes_groups(q, k):
        return kernel(grad.contiguous(), q, k, v, out, lse, 0.0, causal, attn_mask=added, scale=scale)
    heads = q.shape[1]
    step = max(1, min(-(-torch.get_num_threads() // len(q)), heads // SHARE))  # the kernel runs a head a thread
    by_q = torch.empty_like(q)
    sums = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v)]
    inner = fused_dtype(q, "backward", q.shape[2], k.shape[2])
    keys, values, added = k.to(inner), v.to(inner), cast_mask(added, inner)
    for first in range(0, heads, step):
        g, r, o = (x[:, first : first + step].to(inner) for x in (grad, q, out))
        expanded = (x.expand(-1, r.shape[1], -1, -1) for x in (keys, values))
        by_q[:, first : first + step], *by_keys = kernel(
            g.contiguous(), r, *expanded, o, lse[:, first : first + step], 0.0, causal, attn_mask=added, scale=scale
        )
        for total, found in zip(sums, by_keys, strict=True):
            total += found.sum(1, keepdim=True, dtype=total.dtype)
    return by_q, sums[0].to(k.dtype), sums[1].to(v.dtype)


def _run(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    return _in_order(*_Shared.forward(q, k, v, added, causal, scale))


def _run_backward(
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
    by_q, by_k, by_v = _in_order(*gradients(grad, q, k, v, added, out, lse, causal, scale))
    return by_q, by_k, by_v


def _in_order(*tensors: Tensor) -> Any:
    """Whatever order the kernel left them in: compiled code goes by what shapes alone say."""
    return tuple(x.contiguous() for x in tensors)


def _shapes(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))


_shared = make_op("grouped", _run, _shapes)
_shared_backward = make_op(
    "grouped_backward", _run_backward, lambda _, *qkv: tuple(x.new_empty(x.shape) for x in qkv[:3])
)
_shared.register_autograd(_Shared.op_backward, setup_context=_Shared.setup_context)
