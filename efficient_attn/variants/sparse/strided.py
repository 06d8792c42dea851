"""Strided attention."""

from ... import patterns
from ...contract import Budget, Dims
from ...errors import UsageError
from .sparse_attention import SparseAttention


class Strided(SparseAttention):
    """Each query sees its neighborhood and every ``stride``-th position from its own (Sparse Transformer, Child et al.
    2019, arXiv:1904.10509): abs(i - j) < stride, or a multiple of it.

    stride: None is round(sqrt(dims.max_len)), the paper's choice, with which work grows as N sqrt(N).
    """

    def __init__(self, *, stride: int | None = None, dims: Dims = Dims()) -> None:
        if stride is None and dims.max_len is None:
            raise UsageError("strided: give a stride, or dims with max_len for its default, sqrt(max_len)")
        super().__init__(
            patterns.strided(round((dims.max_len or 0) ** 0.5) if stride is None else stride),
            time="O(N (s + N / s)), O(N sqrt(N)) at s = sqrt(N)",
        )

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """The longest stride whose neighborhood and columns have at most that many keys."""
        n_sides, n = 1 if budget.causal else 2, budget.length
        for stride in range(n, 0, -1):
            if n_sides * (stride - 1) + -(-n // stride) <= budget.keys:
                return {"stride": stride}
        raise UsageError(f"strided: with {n} positions any stride needs more than {budget.keys} keys for a query")
