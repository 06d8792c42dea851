"""Grouped heads with a mask for each row: keys are shared, by stride zero or by torch's kernel itself."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from . import fused


def attend(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float = 0.0
) -> Tensor:
    """Softmax attention of ``q [B, H, N, D]`` over ``k, v [B, Hkv, M, D]``. allowed: bool, ``[1 or B, 1, N, M]``."""
    kernel_groups = not dropout and fused.supports_groups(q, k)
    if not kernel_groups and k.shape[1] > 1:
        return _attend_folded(q, k, v, allowed, causal, scale, dropout)
    if q.device.type == "cpu" and not dropout and fused.wants_gradient(q, k, v):
        return fused.attend_differentiable(q, k, v, allowed, causal, scale)
    if kernel_groups:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, is_causal=causal, scale=scale, enable_gqa=True
        )
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    return fused.attend(q, k, v, allowed=allowed, causal=causal, scale=scale, dropout=dropout)


def _attend_folded(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """Groups as the heads of a larger batch, with one head's keys and values."""
    kv_heads = k.shape[1]
    keys, values = (x.reshape(-1, 1, *x.shape[2:]) for x in (k, v))
    if allowed is not None and allowed.shape[0] > 1:
        allowed = allowed.repeat_interleave(kv_heads, dim=0)
    rows = q.reshape(len(keys), -1, *q.shape[2:])
    return attend(rows, keys, values, allowed, causal, scale, dropout).reshape(q.shape)
