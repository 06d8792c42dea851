"""Dilated-window attention."""

from ... import patterns
from ...contract import Budget
from .sparse_attention import SparseAttention


class DilatedWindow(SparseAttention):
    """Each query sees ``window`` keys on each side, ``dilation`` positions apart (Longformer, Beltagy et al. 2020,
    arXiv:2004.05150).

    window: keys on each side, besides the query's own. dilation: the distance between two of them; 1 is a plain window.
    """

    def __init__(self, *, window: int = 128, dilation: int = 2) -> None:
        super().__init__(patterns.dilated_window(window, dilation), time="O(N w)")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        return {"window": budget.reach()}
