"""The sparse patterns that papers have published, and how they use a budget of keys."""

from ... import patterns
from ...contract.budget import Budget
from ...contract.shapes import Dims
from ...contract.traits import Traits
from ...errors import UsageError
from .sparse_attention import SparseAttention

DEFAULT_SINKS = (
    4  # of `AttentionSinks`, as in its paper: fewer keep some of the increase in perplexity, more do not help
)


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
        """The query's own key, and the other keys on both sides of it, or before it."""
        return {"window": budget.reach()}


class DilatedWindow(SparseAttention):
    """Each query sees ``window`` keys on each side, ``dilation`` positions apart (Longformer, Beltagy et al. 2020,
    arXiv:2004.05150).

    window: keys on each side, besides the query's own. dilation: the distance between two of them; 1 is a plain window.
    """

    def __init__(self, *, window: int = 128, dilation: int = 2) -> None:
        super().__init__(patterns.dilated_window(window, dilation), time="O(N w)")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """As many keys as a plain window has; the dilation is unchanged."""
        return {"window": budget.reach()}


class GlobalTokens(SparseAttention):
    """The first tokens see everything and are seen by everyone; the others see them and themselves (ETC, Ainslie et al.
    2020, arXiv:2004.08483; Longformer, arXiv:2004.05150).

    n_global: how many tokens are global.
    """

    def __init__(self, *, n_global: int = 64) -> None:
        super().__init__(patterns.global_tokens(n_global), time="O(N g)")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """All keys but the query's own are global."""
        return {"n_global": budget.keys - 1}


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
        raise UsageError(
            f"fixed: with {budget.length} positions all blocks need more than {budget.keys} keys for a query"
        )


class Longformer(SparseAttention):
    """A sliding window and global tokens (Beltagy et al. 2020, arXiv:2004.05150).

    window: keys on each side (half of the paper's ``attention_window``). n_global: the first tokens, which see
    everything and are seen by everyone.
    """

    def __init__(self, *, window: int = 128, n_global: int = 64) -> None:
        super().__init__(patterns.sliding_window(window) | patterns.global_tokens(n_global), time="O(N (w + g))")

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """An eighth of the keys is global, the rest a window."""
        return {"n_global": budget.keys // 8, "window": budget.reach(budget.keys - budget.keys // 8)}


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


class AttentionSinks(SparseAttention):
    """The last ``window`` keys and the first ones, to which softmax assigns unneeded weight (StreamingLLM, Xiao et al.
    2023, arXiv:2309.17453). Causal only; decoding keeps both in constant memory.

    window: keys before the query's own. n_sink: the first keys, always visible.
    """

    def __init__(self, *, window: int = 1020, n_sink: int = DEFAULT_SINKS) -> None:
        super().__init__(patterns.Band(0, window) | patterns.sinks(n_sink), time="O(N (w + s))")

    @property
    def traits(self) -> Traits:
        return Traits(exact=True, positional=True, bidirectional=False)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """Four sinks, the rest a window."""
        return {"n_sink": DEFAULT_SINKS, "window": budget.reach(budget.keys - DEFAULT_SINKS)}
