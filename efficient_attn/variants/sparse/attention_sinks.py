"""Attention sinks."""

from ... import patterns
from ...contract import Budget, Traits
from .sparse_attention import SparseAttention

DEFAULT_SINKS = 4  # the paper's: fewer keep some of the increase in perplexity, more do not help


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
        return {"n_sink": DEFAULT_SINKS, "window": budget.reach(budget.keys - DEFAULT_SINKS)}
