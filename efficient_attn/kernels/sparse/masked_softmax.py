"""A pattern as one masked softmax over all pairs: more work than its parts, but less time for short sequences.

The mask is created once for each geometry and cached. Heads are ``q [A, G, N, D]`` over ``k, v [A, G or 1, M, D]``:
with 1, a group shares its keys at stride zero. Compiled code does the same inside an op: `run_masked`.
"""

import torch
from torch import Tensor

from ...patterns import Geometry, Pattern
from ..half_precision import fused_dtype
from ..mask_cache import MASK_CACHE
from ..softmax.fused import attend_with_lse, contiguous_rows, gradients_with_lse
from ..softmax.merge import FusedInputs, FusedOptions
from ..softmax.softmax_kernel import SavedSoftmax, SoftmaxKernel
from .additive_masks import MAX_CACHED_PAIRS, AdditiveMask, make_additive_mask


def pattern_mask(pattern: Pattern, g: Geometry, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """The additive mask ``[1, 1, N, M]`` of a pattern and causality; None if all count, or on the meta device."""
    if device.type == "meta":
        return None

    def make() -> AdditiveMask:
        i, j = torch.arange(g.n, device=device)[:, None] + g.start, torch.arange(g.m, device=device)
        allowed = pattern.allows(i, j, g)
        return make_additive_mask((allowed & (j <= i) if g.causal else allowed)[None, None], dtype)

    if g.n * g.m > MAX_CACHED_PAIRS:
        with torch.no_grad():
            return make().scores
    return MASK_CACHE.find((pattern, g, dtype, device), make).scores


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, pattern: Pattern, g: Geometry, scale: float
) -> Tensor:
    """Softmax of ``q [B, H, N, D]`` over ``k, v [B, Hkv, M, D]`` in one call; zeros without keys. valid: ``[B, M]``."""
    q, k, v = (contiguous_rows(x) for x in (q, k, v))
    batch, heads, n, width = q.shape
    mask = pattern_mask(pattern, g, fused_dtype(q, "forward", n, g.m), q.device)
    kv_heads = k.shape[1]
    if kv_heads == heads:
        return MASKED(FusedInputs(q, k, v, _hide_padding(mask, q, valid)), FusedOptions(False, scale))
    rows = q.reshape(batch * kv_heads, -1, n, width)
    keys, values = (x.reshape(batch * kv_heads, 1, g.m, width) for x in (k, v))
    folded = None if valid is None else valid.repeat_interleave(kv_heads, dim=0)
    inputs = FusedInputs(rows, keys, values, _hide_padding(mask, q, folded))
    return MASKED(inputs, FusedOptions(False, scale)).reshape(q.shape)


def run_masked(inputs: FusedInputs, scale: float) -> tuple[Tensor, Tensor]:
    """As `parts.run_plan`, with a mask from `fold_mask`. ``q [Bh, N, group, D]``, ``k, v [Bh, M, D]``."""
    out, lse = attend_with_lse(_head_first(inputs), FusedOptions(False, scale))
    return out.transpose(1, 2), lse.transpose(1, 2)


def masked_gradients(grad: Tensor, saved: SavedSoftmax[FusedInputs], scale: float) -> tuple[Tensor, ...]:
    """The gradients of q, k and v of the result of `run_masked`."""
    head_first = SavedSoftmax(_head_first(saved.inputs), saved.out.transpose(1, 2), saved.lse.transpose(1, 2))
    grad_q, grad_k, grad_v = gradients_with_lse(grad.transpose(1, 2), head_first, FusedOptions(False, scale))
    return grad_q.transpose(1, 2), grad_k[:, 0], grad_v[:, 0]


def _head_first(inputs: FusedInputs) -> FusedInputs:
    q, k, v, mask = inputs
    return FusedInputs(q.transpose(1, 2), k[:, None], v[:, None], mask)


def fold_mask(q: Tensor, valid: Tensor | None, pattern: Pattern, g: Geometry) -> Tensor | None:
    """The mask of a pattern for ``q [Bh, N, group, D]``, with the padding ``[B, M]`` for each key-value head."""
    mask = pattern_mask(pattern, g, q.dtype, q.device)
    folded = None if valid is None else valid.repeat_interleave(q.shape[0] // valid.shape[0], dim=0)
    return _hide_padding(mask, q, folded)


def _hide_padding(mask: Tensor | None, q: Tensor, valid: Tensor | None) -> Tensor | None:
    """The mask with padding ``[rows of the batch, M]`` hidden as well."""
    if valid is None:
        return mask
    scores = q.new_zeros(1, 1, 1, 1) if mask is None else mask
    return scores.masked_fill(~valid[:, None, None], float("-inf"))


MASKED = SoftmaxKernel("the kernel of sparse patterns", FusedInputs, FusedOptions, attend_with_lse, gradients_with_lse)
