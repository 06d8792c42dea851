"""Retention."""

from __future__ import annotations

import torch
from torch import Tensor

from ... import feature_maps
from ...contract.mask import Mask
from ...contract.traits import Traits
from ...kernels.dense import expand_heads, wide
from ...kernels.linear.recipe import Divisor
from .engine import LinearAttention


class Retention(LinearAttention):
    """sum_j gamma^(i - j) (q_i . k_j / sqrt(D)) v_j over j <= i, with gamma = 1 - 2^(-5 - h) for head h (RetNet, Sun et
    al. 2023, arXiv:2307.08621). Causal only.

    normalised: the paper's option, outputs divided by max(abs(sum of weights), 1); otherwise nothing is normalised, as
    a norm of the layer follows. The paper's rotation of queries and keys belongs to the layer as well. Heads of a group
    share keys and values and keep their own decays, so a state is as large as without groups.
    """

    def __init__(self, *, normalised: bool = False) -> None:
        super().__init__(feature_maps.scaled_identity)
        self.normalised = normalised

    @property
    def traits(self) -> Traits:
        return Traits(bidirectional=False, normalised=False, positional=True)

    @property
    def divisor(self) -> Divisor | None:
        return at_least_one if self.normalised else None

    def rates(self, heads: int) -> Tensor:
        return -torch.log1p(-(2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))))

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64, device=q.device))
        distance = torch.arange(n, device=q.device)[:, None] + mask.start(n, m) - torch.arange(m, device=q.device)
        decay = gamma[:, None, None] ** distance.clamp(min=0)
        scores = wide(q) @ wide(expand_heads(k, heads)).mT * q.shape[3] ** -0.5
        weights = (scores * decay.to(scores.dtype)).masked_fill(~mask.dense(n, m, device=q.device), 0)
        out = weights @ wide(expand_heads(v, heads))
        return (out / at_least_one(weights.sum(-1, keepdim=True)) if self.normalised else out).to(q.dtype)


def at_least_one(total: Tensor) -> Tensor:
    return total.abs().clamp(min=1)
