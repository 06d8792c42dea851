"""Multi-head latent attention in two equivalent forms: with keys and values computed from latents, or without.

q ``[B, H, N, D + R]``; latents ``[B, 1, M, C + R]``, of which the last R components are a key for all heads; w_uk ``[H,
D, C]`` and w_uv ``[H, E, C]`` compute a head's keys and values from the rest. Scores are divided by sqrt(D + R).
"""

import torch
from torch import Tensor

from ...contract.mask import Mask
from ..half_precision import matmul
from .sdpa import attend

MAX_EXPANDED_ELEMENTS = 2**22  # numbers of keys and values at a time: those of all heads would be the peak memory


def attend_absorbed(
    q: Tensor, latents: Tensor, w_uk: Tensor, w_uv: Tensor, mask: Mask, *, backend: str = "sdpa"
) -> Tensor:
    """q . (W c) = (W^T q) . c and sum_j p_j (W c_j) = W sum_j p_j c_j: all heads attend to the one latent."""
    _, width, latent = w_uk.shape
    content, rotary = q.split((width, q.shape[-1] - width), -1)
    # `attend` divides by the root of its own width
    rows = torch.cat([matmul(content, w_uk), rotary], -1) * (latents.shape[-1] / q.shape[-1]) ** 0.5
    # whole rows as values: cutting the rotary columns off the output costs less than non-contiguous rows
    return matmul(attend(rows, latents, latents, mask, backend=backend)[..., :latent], w_uv.mT)


def attend_expanded(q: Tensor, latents: Tensor, w_uk: Tensor, w_uv: Tensor, mask: Mask) -> Tensor:
    """Each head's keys and values, some heads at a time."""
    heads, values = len(w_uk), w_uv.shape[1]
    at_once = max(1, MAX_EXPANDED_ELEMENTS // (latents.shape[0] * latents.shape[2] * (q.shape[-1] + values)))
    if at_once >= heads:  # as in short calls, where views with gradients would cost as much as a product
        return _attend_heads(q, latents, w_uk, w_uv, mask)
    parts = zip(q.split(at_once, 1), w_uk.split(at_once), w_uv.split(at_once), strict=True)
    return torch.cat([_attend_heads(rows, latents, uk, uv, mask) for rows, uk, uv in parts], 1)


def _attend_heads(q: Tensor, latents: Tensor, w_uk: Tensor, w_uv: Tensor, mask: Mask) -> Tensor:
    latent = w_uk.shape[2]
    if latent == latents.shape[-1]:
        return attend(q, _project_heads(latents, w_uk), _project_heads(latents, w_uv), mask)
    rows, rotary = latents[..., :latent], latents[..., latent:]
    keys = torch.cat([_project_heads(rows, w_uk), rotary.expand(-1, len(w_uk), -1, -1)], -1)
    return attend(q, keys, _project_heads(rows, w_uv), mask)


def _project_heads(rows: Tensor, weights: Tensor) -> Tensor:
    """``rows [B, 1, M, C]`` by ``weights [H, D, C]`` as ``[B, H, M, D]``, in one product that repeats no weights."""
    return matmul(rows[:, 0], weights.flatten(0, 1).mT).unflatten(-1, weights.shape[:2]).transpose(1, 2)
