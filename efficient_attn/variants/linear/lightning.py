"""Lightning attention."""

import torch
from torch import Tensor

from ... import feature_maps
from ...contract import Traits
from ...errors import UsageError
from ...kernels.linear.linear_config import Divisor
from .linear_attention import LinearAttention


class Lightning(LinearAttention):
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
        return Traits(bidirectional=False, normalised=False, positional=True)

    @property
    def divisor(self) -> Divisor | None:
        return None

    def rates(self, heads: int) -> Tensor:
        return self.share * 8 * torch.arange(heads, dtype=torch.float64) / heads
