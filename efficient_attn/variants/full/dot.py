"""Attention by dot products without a scale."""

from torch import Tensor

from .scored import ScoredAttention


class Dot(ScoredAttention):
    """softmax(q k^T) v, the unscaled dot product (Luong et al. 2015, arXiv:1508.04025, "dot").

    Without the division by sqrt(D), scores have variance D if q and k have unit variance, so that for wide heads one
    key takes nearly all weight, and the gradients of most queries and keys vanish.
    """

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT
