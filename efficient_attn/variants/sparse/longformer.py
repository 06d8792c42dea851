"""Longformer's attention."""

from ... import patterns
from ...contract import Budget
from .sparse_attention import SparseAttention


class Longformer(SparseAttention):
    """A sliding window and global tokens (Beltagy et al. 2020, arXiv:2004.05150).

    window: keys on each side (half of the paper's ``attention_window``). n_global: the first tokens, which see
    everything and are seen by everyone.
    """

    def __init__(self, *, window: int = 128, n_global: int = 64) -> None:
        super().__init__(patterns.sliding_window(window) | patterns.global_tokens(n_global), time="O(N (w + g))")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        return {"n_global": budget.keys // 8, "window": budget.reach(budget.keys - budget.keys // 8)}
