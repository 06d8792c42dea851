"""A pattern as one masked softmax over all pairs: more work than its parts, and for short sequences less time.

The mask is made once a geometry and kept. Heads are ``q [A, G, N, D]`` over ``k, v [A, G or 1, M, D]``: with 1, a
group shares its keys at stride zero. In compiled code the same happens inside an op: `run_masked`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ...patterns import Geometry, Pattern
from ..half import fused_dtype
from ..softmax.fused import Fused, in_rows
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
    q, k, v = (in_rows(x) for x in (q, k, v))
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
    return cast(tuple[Tensor, Tensor], _Masked.apply(q, k, v, mask, False, scale))[0]


class _Masked(Fused):
    kernel = "the kernel of sparse patterns"


def run_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """What `parts.run_plan` gives, under a mask that `fold_mask` made; no gradient."""
    out, lse = _Masked.forward(q.transpose(1, 2), k[:, None], v[:, None], mask, False, scale)
    return out.transpose(1, 2), lse.transpose(1, 2)


def masked_gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v of what `run_masked` gave."""
    by_out, rows, found, sums = (x.transpose(1, 2) for x in (grad, q, out, lse))
    by_q, by_k, by_v = _Masked.gradients(by_out, rows, k[:, None], v[:, None], mask, found, sums, False, scale)
    return by_q.transpose(1, 2), by_k[:, 0], by_v[:, 0]


def fold_mask(q: Tensor, valid: Tensor | None, pattern: Pattern, g: Geometry) -> Tensor | None:
    """The mask of a pattern for ``q [Bh, N, group, D]``, with the padding ``[B, M]`` for each key-value head."""
    mask = pattern_mask(pattern, g, q.dtype, q.device)
    folded = None if valid is None else valid.repeat_interleave(q.shape[0] // valid.shape[0], dim=0)
    return _hide(mask, q, folded)


def _hide(mask: Tensor | None, q: Tensor, valid: Tensor | None) -> Tensor | None:
    """The mask with padding ``[rows of the batch, M]`` hidden as well."""
    if valid is None:
        return mask
    scores = q.new_zeros(1, 1, 1, 1) if mask is None else mask
    return scores.masked_fill(~valid[:, None, None], float("-inf"))
