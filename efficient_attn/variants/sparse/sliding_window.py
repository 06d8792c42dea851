"""Sliding-window attention."""

from ... import patterns
from ...contract import Budget
from .sparse_attention import SparseAttention


class SlidingWindow(SparseAttention):
    """Each query sees the keys within ``window`` positions, abs(i - j) <= window (Longformer, Beltagy et al. 2020,
    arXiv:2004.05150; causal as in Mistral, arXiv:2310.06825).

    window: keys on each side, besides the query's own. Longformer's ``attention_window`` is twice this, Mistral's
    ``sliding_window`` is this plus one.
    """

    def __init__(self, *, window: int = 128) -> None:
        super().__init__(patterns.sliding_window(window), time="O(N w)")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        return {"window": budget.reach()}
