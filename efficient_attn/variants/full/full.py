"""Exact softmax attention."""

from .engine import SoftmaxAttention


class Full(SoftmaxAttention):
    """softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, arXiv:1706.03762).

    Backends: ``sdpa`` (torch's fused kernels) and ``dense`` (the oracle, N x M weights in memory).
    """
