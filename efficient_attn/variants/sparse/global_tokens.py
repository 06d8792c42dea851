"""Global tokens."""

from ... import patterns
from ...contract import Budget
from .sparse_attention import SparseAttention


class GlobalTokens(SparseAttention):
    """The first tokens see everything and are seen by everyone; the others see them and themselves (ETC, Ainslie et al.
    2020, arXiv:2004.08483; Longformer, arXiv:2004.05150).

    n_global: how many tokens are global.
    """

    def __init__(self, *, n_global: int = 64) -> None:
        super().__init__(patterns.global_tokens(n_global), time="O(N g)")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        return {"n_global": budget.keys - 1}  # all but the query's own
