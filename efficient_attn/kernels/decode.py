"""A few query rows over a long cache, as in decoding with grouped heads: two skinny products, each key read once.

The fused kernel cuts keys into short blocks and is bound there by the cost of its many small products. Here a head's
whole cache goes through oneDNN at once, whose kernels suit such shapes. Where torch lacks oneDNN the fused one serves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .products import on_onednn

KEYS = 8192  # below this the fused kernel's single call wins
ROWS = 32  # above this its products are no longer small


def serves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `few_over_many` may and should run: rows ``q [B, Hkv, R, D]`` over keys ``[B, Hkv, M, D]``."""
    fits = 1 < q.shape[2] <= ROWS and k.shape[2] >= KEYS and on_onednn(q)
    # with a cache whose rows lie apart, as in [B, M, H, D] memory order, oneDNN takes a hundred times as long
    fits = fits and all(x.stride()[2:] == (x.shape[3], 1) for x in (k, v))
    return fits and not (torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)))


def few_over_many(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale q k^T) v for q ``[B, Hkv, R, D]``, k, v ``[B, Hkv, M, D]``; no gradient."""
    linear = torch.ops.mkldnn._linear_pointwise
    rows, out = q * scale, torch.empty_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights = linear(rows[b, h], k[b, h], None, "none", [], "")
            torch.softmax(weights, -1, out=weights)  # in place: fresh pages cost more than the arithmetic
            out[b, h] = linear(weights, v[b, h].T, None, "none", [], "")
    return out
