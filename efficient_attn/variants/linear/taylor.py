"""Linear attention with the Taylor series of exp."""

import torch
from torch import Tensor

from ... import feature_maps
from ...contract import Mask
from ...kernels.dense import expand_heads, weighted_average, widen
from .linear_attention import LinearAttention


class Taylor(LinearAttention):
    """exp(s) replaced by 1 + s + s^2 / 2, s = q.k / sqrt(D): its second-order Taylor series, positive for every s
    (Based, Arora et al. 2024, arXiv:2402.18668; Zhang et al. 2024, arXiv:2402.04347).

    Its features are 1, the coordinates and their products: somewhat more than D^2 / 2, 2369 at D = 64. So its state is
    37 times that of `linear`, and exact attention is cheaper up to some thousand positions.
    """

    def __init__(self) -> None:
        super().__init__(feature_maps.taylor)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        """The series itself, without features."""
        k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        s = widen(q) @ widen(k).mT * q.shape[3] ** -0.5
        allowed = mask.dense(q.shape[2], k.shape[2], device=q.device)
        return weighted_average(torch.where(allowed, 1 + s + s.square() / 2, 0), widen(v)).to(q.dtype)
