"""Attention over the blocks of keys with the largest weights."""

from functools import partial

from ...contract import Budget, Traits
from ...errors import UsageError, check_at_least_one
from ...kernels.selected_keys import Rule, select_blocks
from .selected_attention import SelectedAttention


class BlockTopK(SelectedAttention):
    """Softmax over the blocks of keys that have the largest sums of weights, for each query and head: the best
    selection of so many blocks, against which those by bounds or means of blocks are judged.

    blocks: their number; of equal sums the first. block_size: in keys, of which only visible ones count.
    """

    def __init__(self, *, blocks: int = 4, block_size: int = 16) -> None:
        super().__init__()
        check_at_least_one("block_topk", blocks=blocks, block_size=block_size)
        self.blocks, self.block_size = blocks, block_size

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """As many blocks as the budget has room for; blocks of up to 16 keys unless the spec names a size."""
        size = budget.options.get("block_size", min(16, budget.keys))
        if budget.keys < size:
            raise UsageError(f"block_topk: a block has {size} keys, the budget {budget.keys}")
        return {"blocks": budget.keys // size, "block_size": size}

    @property
    def traits(self) -> Traits:
        return Traits(exact=True, positional=True)

    @property
    def rule(self) -> Rule:
        return partial(select_blocks, count=self.blocks, size=self.block_size)

    def why_no_starts(self) -> str | None:
        return "its blocks count from the first position"
