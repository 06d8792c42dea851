"""Lightning attention."""

import torch
from torch import Tensor

from ... import feature_maps
from ...contract import Mask, Traits
from ...errors import UsageError
from ...kernels.dense import expand_heads, widen
from ...kernels.linear.linear_config import Divisor
from .fla_linear import FlaLinearAttention


class Lightning(FlaLinearAttention):
    """S_t = lambda S_(t-1) + k_t^T v_t with a constant decay lambda = exp(-8 h / H share) for head h of H (lightning
    attention, Qin et al. 2024, arXiv:2401.04658; the decays are those of flash-linear-attention). Causal only, not
    normalized.

    share: of the decays in this layer, 1 - l / L in layer l of L. The norm and the activations of queries and keys
    belong to the layer.
    """

    def __init__(self, *, share: float = 1.0) -> None:
        super().__init__(feature_maps.scaled_identity)
        if not 0 < share <= 1:
            raise UsageError(f"lightning: share must be above 0 and at most 1, not {share}")
        self.share = share

    @property
    def traits(self) -> Traits:
        return self.narrow(Traits(bidirectional=False, normalised=False, positional=True))

    @property
    def divisor(self) -> Divisor | None:
        return None

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        distance = mask.positions(n, m, device=q.device)[:, None] - torch.arange(m, device=q.device)
        decay = (-self.rates(heads).to(q.device)[:, None, None] * distance.clamp(min=0)).exp()
        scores = widen(q) @ widen(expand_heads(k, heads)).mT * q.shape[3] ** -0.5
        weights = scores * (decay * mask.dense(n, m, device=q.device)).to(scores.dtype)
        return (weights @ widen(expand_heads(v, heads))).to(q.dtype)

    def rates(self, heads: int) -> Tensor:
        return self.share * 8 * torch.arange(heads, dtype=torch.float64) / heads
