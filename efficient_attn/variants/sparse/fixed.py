"""Fixed factorised attention."""

from ... import patterns
from .engine import SparseAttention


class Fixed(SparseAttention):
    """Each query sees its own block, and the last keys of every block as its summary (Sparse Transformer, Child et al.
    2019, arXiv:1904.10509).

    stride: positions a block. summary: keys at the end of each block that everyone sees (the paper's c).
    """

    def __init__(self, *, stride: int = 128, summary: int = 8) -> None:
        super().__init__(patterns.fixed(stride, summary), time="O(N (s + c N / s)), O(N sqrt(N)) at s = sqrt(N)")
