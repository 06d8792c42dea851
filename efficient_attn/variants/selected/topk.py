"""Attention over the keys with the largest scores."""

from functools import partial

from ...contract import Budget
from ...errors import check_at_least_one
from ...kernels.selected_keys import Rule, select_largest
from .selected_attention import SelectedAttention


class TopK(SelectedAttention):
    """Softmax over the keys with the largest scores of each query and head: the best selection of so many keys, against
    which others are judged (Gupta et al. 2021, arXiv:2106.06899).

    keys: their number; where scores are equal to the last of them, all of these count.
    """

    def __init__(self, *, keys: int = 64) -> None:
        super().__init__()
        check_at_least_one("topk", keys=keys)
        self.keys = keys

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """All keys of the budget."""
        return {"keys": budget.keys}

    @property
    def rule(self) -> Rule:
        return partial(select_largest, count=self.keys)

    def why_no_starts(self) -> str | None:
        return None

    def pairs(self, n: int, m: int, causal: bool) -> int:
        if not causal:
            return n * min(m, self.keys)
        return sum(min(max(m - n + i + 1, 0), self.keys) for i in range(n))
