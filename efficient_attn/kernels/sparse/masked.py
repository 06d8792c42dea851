"""A pattern as one masked softmax over all pairs: more work than its parts, and for short sequences less time.

The mask is made once a geometry and kept. Heads are ``q [A, G, N, D]`` over ``k, v [A, G or 1, M, D]``: with 1, a
group shares its keys at stride zero. In compiled code the same happens inside an op: `run_masked`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ...patterns import Geometry, Pattern
from ..derivatives import KernelFunction, differentiate_once
from ..half import fused_dtype
from ..softmax.fused import cast_mask
from ..softmax.grouped import gradients
from ..softmax.merge import attend, attend_backward
from .masks import LARGEST, Added, add_mask, kept


def pattern_mask(pattern: Pattern, g: Geometry, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """The additive mask ``[1, 1, N, M]`` of a pattern, causality included; None where every pair counts, and on the
    meta device, which holds no numbers."""
    if device.type == "meta":
        return None

    def make() -> Added:
        i, j = torch.arange(g.n, device=device)[:, None] + g.start, torch.arange(g.m, device=device)
        allowed = pattern.allows(i, j, g)
        return add_mask((allowed & (j <= i) if g.causal else allowed)[None, None], dtype)

    if g.n * g.m > LARGEST:
        with torch.no_grad():
            return make().scores
    return kept.find((pattern, g, dtype, device), make).scores


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, pattern: Pattern, g: Geometry, scale: float
) -> Tensor:
    """Softmax attention of ``q [B, H, N, D]`` over ``k, v [B, Hkv, M, D]`` in one kernel call. valid: ``[B, M]``, where
    there is padding. Rows that see nothing are zeros."""
    if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:  # the kernel never looks at it
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, n, width = q.shape
    mask = pattern_mask(pattern, g, fused_dtype(q, "forward", n, g.m), q.device)
    kv_heads = k.shape[1]
    if kv_heads == heads:
        return _run(q, k, v, _hide(mask, q, valid), scale)
    rows = q.reshape(batch * kv_heads, -1, n, width)
    keys, values = (x.reshape(batch * kv_heads, 1, g.m, width) for x in (k, v))
    folded = None if valid is None else valid.repeat_interleave(kv_heads, dim=0)
    return _run(rows, keys, values, _hide(mask, q, folded), scale).reshape(q.shape)


def _run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    return cast(tuple[Tensor, Tensor], _Masked.apply(q, k, v, mask, scale))[0]


def run_masked(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, pattern: Pattern, g: Geometry, scale: float
) -> tuple[Tensor, Tensor]:
    """What `parts.run_plan` gives: of ``q [Bh, N, group, D]`` over ``k, v [Bh, M, D]``; no gradient."""
    mask = _fold(pattern_mask(pattern, g, q.dtype, q.device), q, valid)
    out, lse = _Masked.forward(q.transpose(1, 2), k[:, None], v[:, None], mask, scale)
    return out.transpose(1, 2).contiguous(), lse.transpose(1, 2).contiguous()


def masked_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    out: Tensor,
    lse: Tensor,
    pattern: Pattern,
    g: Geometry,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v of what `run_masked` gave."""
    mask = _fold(pattern_mask(pattern, g, q.dtype, q.device), q, valid)
    by_out, rows, found, sums = (x.transpose(1, 2) for x in (grad, q, out, lse))
    by_q, by_k, by_v = _gradients(by_out, rows, k[:, None], v[:, None], mask, found, sums, scale)
    return by_q.transpose(1, 2).contiguous(), by_k[:, 0], by_v[:, 0]


class _Masked(KernelFunction):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        inner = fused_dtype(q, "forward", q.shape[2], k.shape[2])
        rows, keys, values = (x.to(inner) for x in (q, k, v))
        out, lse = attend(rows, _share(keys, q), _share(values, q), cast_mask(mask, inner), scale)
        return out.to(q.dtype), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.scale = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = (grads[0], *ctx.saved_tensors, ctx.scale)
        return *differentiate_once("the kernel of sparse patterns", _gradients, *given), None, None


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
) -> tuple[Tensor, ...]:
    if k.shape[1] < q.shape[1] and q.device.type == "cpu":
        return gradients(grad, q, k, v, mask, out, lse, False, scale)
    inner = fused_dtype(q, "backward", q.shape[2], k.shape[2])
    by_out, rows, keys, values, found = (x.to(inner) for x in (grad.contiguous(), q, k, v, out))
    by_q, *by_keys = attend_backward(
        by_out, rows, _share(keys, q), _share(values, q), found, lse, cast_mask(mask, inner), scale
    )
    if k.shape[1] < q.shape[1]:
        by_keys = [x.sum(1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32)) for x in by_keys]
    return tuple(x.to(q.dtype) for x in (by_q, *by_keys))


def _share(x: Tensor, q: Tensor) -> Tensor:
    """Keys for each head of a group."""
    return x if x.shape[1] == q.shape[1] else x.expand(-1, q.shape[1], -1, -1)


def _fold(mask: Tensor | None, q: Tensor, valid: Tensor | None) -> Tensor | None:
    """The mask for ``q [Bh, N, group, D]``, with the padding ``[B, M]`` for each key-value head."""
    folded = None if valid is None else valid.repeat_interleave(q.shape[0] // valid.shape[0], dim=0)
    return _hide(mask, q, folded)


def _hide(mask: Tensor | None, q: Tensor, valid: Tensor | None) -> Tensor | None:
    """The mask with padding ``[rows of the batch, M]`` hidden as well."""
    if valid is None:
        return mask
    scores = q.new_zeros(1, 1, 1, 1) if mask is None else mask
    return scores.masked_fill(~valid[:, None, None], float("-inf"))
