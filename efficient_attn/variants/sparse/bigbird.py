"""BigBird's attention."""

from ... import patterns
from ...contract import Budget
from .sparse_attention import SparseAttention


class BigBird(SparseAttention):
    """A sliding window, global tokens and random blocks (Zaheer et al. 2020, arXiv:2007.14062).

    window: keys on each side. n_global: the first tokens, which see everything and are seen by everyone.
    n_random: key blocks drawn for each query block, of ``block_size`` tokens. The defaults are about eight blocks of
    64 a query: three of window, two global, three random.
    """

    def __init__(
        self, *, window: int = 96, n_global: int = 128, n_random: int = 3, block_size: int = 64, seed: int = 0
    ) -> None:
        local_pattern = patterns.sliding_window(window) | patterns.global_tokens(n_global)
        super().__init__(local_pattern | patterns.random_blocks(n_random, block_size, seed), time="O(N (w + g + r b))")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """A quarter of the keys is global, a quarter random, in two blocks, and the rest a window."""
        block, n_global = budget.keys // 8, budget.keys // 4
        window = budget.reach(budget.keys - n_global - 2 * block)
        return {"window": window, "n_global": n_global, "n_random": 2 if block else 0, "block_size": max(block, 1)}
