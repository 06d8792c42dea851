"""Mixture of block attention."""

from torch import Tensor

from ...contract import Budget
from ...errors import UsageError
from .block_attention import BlockAttention


class MoBA(BlockAttention):
    """Softmax over a query's own block of keys, and the topk - 1 earlier blocks whose mean key has the largest product
    with the query, for each query and head (mixture of block attention, Lu et al. 2025, arXiv:2502.13189).

    block: in keys. Masked keys count in no mean. Of equal products the first. Products are in float64. Gradients are
    those of the selected keys, as in the paper.

    Causal only. It keeps all keys and values, and the means of blocks; a decode step reads these and the selected
    blocks.
    """

    def __init__(self, *, block: int = 64, topk: int = 4) -> None:
        super().__init__(block=block, topk=topk)

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """As many blocks as the budget has room for; blocks of up to 64 keys unless the spec names a size."""
        block = budget.options.get("block", max(min(64, budget.keys // 2), 1))
        if budget.keys < block:
            raise UsageError(f"moba: a block has {block} keys, the budget {budget.keys}")
        return {"block": block, "topk": budget.keys // block}

    def summarise(self, keys: Tensor, valid: Tensor) -> Tensor:
        return keys.double().sum(3) / valid.sum(-1).clamp(min=1)[..., None]

    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        return q.double() @ summaries.mT
