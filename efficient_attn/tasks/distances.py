"""Distances: how far a mechanism's output is from exact softmax attention on the same queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.mask import Mask
from ..contract.mechanism import Attention
from ..instruments.distance import relative_error
from ..kernels.dense import expand_heads, masked_softmax


@dataclass(frozen=True)
class Distances:
    """Distances from exact attention, over all heads and rows.

    relative_error: ratio of Frobenius norms, |out - exact| / |exact|; predicting zero has 1.
    mean_value_error: the same of the predictor that always says the mean of the visible values.
    cosine_similarity: of output rows, averaged. total_variation: half the L1 distance between the weights of a row,
    averaged. missed_mass: exact weight on keys to which the mechanism gives none, averaged. effective_keys: the
    exponential of the entropy of exact weights, averaged; how many keys a query really reads.
    """

    relative_error: float
    mean_value_error: float
    cosine_similarity: float
    total_variation: float
    missed_mass: float
    effective_keys: float


def measure_distances(attn: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Distances:
    """Compare a mechanism with exact attention. q ``[B, H, N, D]``, k, v ``[B, Hkv, M, D]``; dense."""
    with torch.no_grad():
        exact_weights = _exact_weights(q, k, mask)
        values = expand_heads(v, q.shape[1]).double()
        exact = exact_weights @ values
        out = attn(q, k, v, mask).double()
        weights = _weights(attn, q, k, mask)
        visible = mask.dense(q.shape[2], k.shape[2], device=q.device).double()
        mean_value = (visible / visible.sum(-1, keepdim=True).clamp(min=1)) @ values
        entropy = -(exact_weights * exact_weights.clamp(min=1e-300).log()).sum(-1)
        return Distances(
            relative_error=relative_error(out, exact),
            mean_value_error=relative_error(mean_value, exact),
            cosine_similarity=torch.cosine_similarity(out, exact, dim=-1).mean().item(),
            total_variation=(weights - exact_weights).abs().sum(-1).mean().item() / 2,
            missed_mass=exact_weights.masked_fill(weights != 0, 0).sum(-1).mean().item(),
            effective_keys=entropy.exp().mean().item(),
        )


def _exact_weights(q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    scores = q.double() @ expand_heads(k, q.shape[1]).double().mT * q.shape[-1] ** -0.5
    return masked_softmax(scores, mask.dense(q.shape[2], k.shape[2], device=q.device))


def _weights(attn: Attention, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    """The weights ``[B, H, N, M]`` that a mechanism gives: its output is linear in v, so v = identity shows them."""
    m = k.shape[2]
    identity = torch.eye(m, dtype=q.dtype, device=q.device).expand(k.shape[0], k.shape[1], m, m)
    return attn(q, k, identity, mask).double()
