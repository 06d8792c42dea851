"""torch's fused attention for plain tensors; of half precision on CPUs in the dtype that is fastest there.

torch's own backward pass of bfloat16 takes six times as long as float32's where the processor has no products of it.
Here q, k and v are cast for a pass, forwards and backwards, and what is kept in between has their own dtype.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from ..half import fused_dtype


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Softmax attention of ``q [B, H, N, D]`` over ``k, v [B, H, M, D]``. allowed: bool, ``[1 or B, 1, 1 or N, M]``."""
    inner = [fused_dtype(q, part, q.shape[2], k.shape[2]) for part in ("forward", "backward")]
    if inner == [q.dtype, q.dtype] or (dropout and inner[1] == q.dtype):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, dropout_p=dropout, is_causal=causal, scale=scale
        )
    if dropout or not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))):
        wide = (x.to(inner[1] if dropout else inner[0]) for x in (q, k, v))
        found = F.scaled_dot_product_attention(
            *wide, attn_mask=allowed, dropout_p=dropout, is_causal=causal, scale=scale
        )
        return found.to(q.dtype)
    added = None if allowed is None else additive(allowed, torch.float32)
    return cast(tuple[Tensor, Tensor], _Cast.apply(q, k, v, added, causal, scale, *inner))[0]


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, minus infinity elsewhere."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, float("-inf"))


class _Cast(KernelFunction):
    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        added: Tensor | None,
        causal: bool,
        scale: float,
        forwards: torch.dtype,
        backwards: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        rows = (cast_rows(x, forwards) for x in (q, k, v))
        out, lse = kernel(*rows, 0.0, causal, attn_mask=cast_mask(added, forwards), scale=scale)
        return out.to(q.dtype), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, causal, scale, _, backwards = inputs
        ctx.how = causal, scale, backwards
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = (grads[0], *ctx.saved_tensors, *ctx.how)
        return *differentiate_once("torch's fused kernel", _gradients, *given), *[None] * 5


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    added: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    backwards: torch.dtype,
) -> tuple[Tensor, ...]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    rows = (cast_rows(x, backwards) for x in (grad, q, k, v, out))
    found = kernel(*rows, lse, 0.0, causal, attn_mask=cast_mask(added, backwards), scale=scale)
    return tuple(x.to(q.dtype) for x in found)


def cast_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in a dtype, and in rows without gaps, which the kernel takes for granted."""
    x = x.to(dtype)
    return x if x.stride(-1) == 1 else x.contiguous()


def cast_mask(added: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """An additive mask in a dtype, if there is one."""
    return None if added is None else added.to(dtype)
