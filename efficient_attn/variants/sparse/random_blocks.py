"""Random block attention."""

from ... import patterns
from ...contract import Budget
from .sparse_attention import SparseAttention


class RandomBlocks(SparseAttention):
    """Each block of queries sees its own block of keys and a few random ones (BigBird, Zaheer et al. 2020,
    arXiv:2007.14062).

    n_random: distinct blocks drawn for a query block, at most as many as there are. block_size: tokens of a block; 1 is
    token-level random attention. The draw depends on the seed, the block and the number of blocks, and is the same for
    all rows and heads; a causal query block draws from those up to its own.
    """

    def __init__(self, *, n_random: int = 3, block_size: int = 64, seed: int = 0) -> None:
        super().__init__(patterns.random_blocks(n_random, block_size, seed), time="O(N r b)")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """Eight blocks for each query, its own and seven random ones; single tokens below sixteen keys."""
        return {"block_size": max(budget.keys // 8, 1), "n_random": budget.keys // max(budget.keys // 8, 1) - 1}
