"""Softmax attention whose scores decay with forget gates: s_ij = q_i . k_j / sqrt(D) + c_i - c_j, c_t = sum of log f.

c_i does not change the softmax of row i, and -c_j is one more column of the keys, so that torch's fused kernel computes
the rest. Sums are large: -c_j is therefore relative to the first of some rows at a time, which leaves the keys that
matter to them small numbers.
"""

from functools import partial

import torch
from torch import Tensor

from ...contract.mask import Mask
from ..dense import masked_softmax, widen
from ..selected_keys import copy_tensors, recompute
from .score_tiles import UNBOUNDED
from .sdpa import MASK_ROWS, attend_fused

MIN_ROWS = 32  # that are computed together


def attend(q: Tensor, k: Tensor, v: Tensor, sums: Tensor, mask: Mask, back: int = UNBOUNDED) -> Tensor:
    """Causal. q ``[B, H, N, D]``, k, v ``[B, Hkv, M, D or E]``, sums of gates ``[B, Hkv, M]`` in float64. back: the
    distance of the first key that a query sees."""
    n, m = q.shape[2], k.shape[2]
    start, valid = mask.start(n, m), copy_tensors(mask).key_valid(m)
    n_blind = min(max(-start, 0), n)
    parts = [q.new_zeros(*q.shape[:2], n_blind, v.shape[3])] if n_blind else []
    step = min(MASK_ROWS, max(back, MIN_ROWS))  # rows in a window share few keys with distant ones
    for first in range(n_blind, n, step):
        rows = slice(first, min(first + step, n))
        keys = slice(min(max(start + first - back, 0), m), min(start + rows.stop, m))
        if keys.start >= keys.stop:  # after the last key, out of its reach
            parts.append(q.new_zeros(*q.shape[:2], rows.stop - first, v.shape[3]))
            continue
        keys_valid = None if valid is None else valid[:, keys]
        block = _attend_one if n == 1 else _attend_block
        run = partial(block, distance=start + first - keys.start, back=back, valid=keys_valid)
        parts.append(recompute(run, q[:, :, rows], k[:, :, keys], v[:, :, keys], sums[..., keys]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _attend_block(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor, *, distance: int, back: int, valid: Tensor | None
) -> Tensor:
    """distance: of the first row from the first key. valid: ``[B, M]``."""
    width, wide, column = q.shape[3], widen(k), _make_column(sums, k, distance)
    rows = torch.cat([widen(q), wide.new_full((*q.shape[:3], 1), width**0.5)], 3)
    keys, allowed = torch.cat([wide, column[..., None]], 3), _find_allowed(q, k, distance, back, valid)
    return attend_fused(rows, keys, widen(v), allowed=allowed, scale=width**-0.5).to(q.dtype)


def _attend_one(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor, *, distance: int, back: int, valid: Tensor | None
) -> Tensor:
    """A decode step: the weights of its one row are few, and its keys are not copied."""
    batch, heads, n, width = q.shape
    kv_heads, wide = k.shape[1], widen(k)
    rows = widen(q).reshape(batch, kv_heads, -1, width) * width**-0.5
    column = _make_column(sums, k, distance)[:, :, None]
    scores = (rows @ wide.mT + column).view(batch, kv_heads, heads // kv_heads, n, -1)
    weights = masked_softmax(scores, _find_allowed(q, k, distance, back, valid)[:, :, None]).flatten(2, 3)
    return (weights @ widen(v)).view(batch, heads, n, -1).to(q.dtype)


def _make_column(sums: Tensor, k: Tensor, distance: int) -> Tensor:
    """c of the first row less those of the keys ``[B, Hkv, M]``."""
    reference = min(distance, sums.shape[-1] - 1)
    return (sums[..., reference : reference + 1] - sums).to(widen(k[:0]).dtype)


def _find_allowed(q: Tensor, k: Tensor, distance: int, back: int, valid: Tensor | None) -> Tensor:
    """The keys that each row sees, bool ``[1 or B, 1, rows, M]``."""
    n, m = q.shape[2], k.shape[2]
    i, j = torch.arange(distance, distance + n, device=q.device)[:, None], torch.arange(m, device=q.device)
    allowed = j <= i
    if distance + n - 1 > back:
        allowed &= j >= i - back
    return allowed[None, None] if valid is None else allowed & valid[:, None, None]
