"""Fixed factorised attention."""

from ... import patterns
from ...contract import Budget
from ...errors import UsageError
from .sparse_attention import SparseAttention


class Fixed(SparseAttention):
    """Each query sees its own block, and the last keys of every block as its summary (Sparse Transformer, Child et al.
    2019, arXiv:1904.10509).

    stride: positions of a block. summary: keys at the end of each block that all queries see (the paper's c).
    """

    def __init__(self, *, stride: int = 128, summary: int = 8) -> None:
        super().__init__(patterns.fixed(stride, summary), time="O(N (s + c N / s)), O(N sqrt(N)) at s = sqrt(N)")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """The longest block for which it and one summary of each other block are no more keys than that."""
        for stride in range(budget.length, 0, -1):
            if stride + -(-budget.length // stride) - 1 <= budget.keys:
                return {"stride": stride, "summary": 1}
        raise UsageError(f"fixed: with {budget.length} positions all blocks need more than {budget.keys} keys a query")
