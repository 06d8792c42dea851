"""Mixture of block attention."""

import torch
from torch import Tensor

from ...contract import Budget, Growth, Mask, Traits
from ...contract.decode_state import preallocate
from ...errors import UsageError, check_at_least_one
from ...kernels.block_means import BlockMeans, attend_listed, attend_listed_rows, rank_blocks
from ...kernels.dense import softmax_attention
from ...kernels.selected_keys import spread_blocks
from ...kernels.softmax.block_lists import TILE_ROWS
from .block_cache import BlockCache
from .selected_attention import SelectedAttention


class MoBA(SelectedAttention):
    """Softmax over a query's own block of keys, and the topk - 1 earlier blocks whose mean key has the largest product
    with the query, for each query and head (mixture of block attention, Lu et al. 2025, arXiv:2502.13189).

    block: in keys. Masked keys count in no mean. Of equal products the first. Blocks that are selected are read by all
    their queries together. Products are in float64. Gradients are those of the selected keys, as in the paper.

    Causal only. It keeps all keys and values, and the sums of blocks; a decode step reads these and the selected
    blocks.
    """

    backends = ("blocks", "dense")

    def __init__(self, *, block: int = 64, topk: int = 4) -> None:
        super().__init__()
        check_at_least_one("moba", block=block, topk=topk)
        self.block, self.topk = block, topk

    @classmethod
    def fit(cls, budget: Budget) -> dict[str, int]:
        """As many blocks as the budget has room for; blocks of up to 64 keys unless the spec names a size."""
        block = budget.options.get("block", max(min(64, budget.keys // 2), 1))
        if budget.keys < block:
            raise UsageError(f"moba: a block has {block} keys, the budget {budget.keys}")
        return {"block": block, "topk": budget.keys // block}

    @property
    def traits(self) -> Traits:
        return Traits(exact=True, bidirectional=False, positional=True)

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", self._cost, self._step_cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """Products with the means of all blocks, and the pairs of selected ones."""
        return n * m / self.block / 2 + self.pairs(n, m, causal)

    def _step_cost(self, m: int) -> float:
        return m / self.block + min(m, self.block * self.topk)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m, heads = q.shape[2], k.shape[2], q.shape[1]
        own_block = mask.positions(n, m, device=q.device).div(self.block, rounding_mode="floor")
        means = BlockMeans.of(k.repeat_interleave(heads // k.shape[1], 1), self.block, mask.key_valid(m))
        order, exists = rank_blocks(q, means, own_block, self.topk - 1)
        number = torch.arange(-(-m // self.block), device=q.device)
        selection = (number == own_block[:, None]) | ((order[..., None] == number) & exists[..., None]).any(-2)
        return softmax_attention(q, k, v, mask.dense(n, m, device=q.device) & spread_blocks(selection, self.block, m))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        means = BlockMeans.of(k.detach(), self.block, mask.key_valid(k.shape[2]))
        return attend_listed(q, k, v, mask, means, self.block, self.topk - 1)

    def pairs(self, n: int, m: int, causal: bool) -> int:
        """Each query's own block up to itself, and earlier ones."""
        positions = range(max(m - n, 0), m)
        return sum(i % self.block + 1 + min(i // self.block, self.topk - 1) * self.block for i in positions)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return self.pairs(n, m, causal)

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> BlockCache:
        sizes = self.dims.cache_sizes(batch, self.kv_heads)
        return preallocate(BlockCache(max_len, block=self.block), sizes, dtype, device).with_sums()

    def why_no_starts(self) -> str | None:
        return "its blocks count from the first position"

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: BlockCache, **inputs: Tensor
    ) -> tuple[Tensor, BlockCache]:
        state = state.append(k, v)
        keys, values = state.filled()
        if self.backend == "dense":
            return self.run(q, keys, values, state.mask), state
        attend = attend_listed_rows if q.shape[2] < TILE_ROWS else attend_listed
        return attend(q, keys, values, state.mask, state.means, self.block, self.topk - 1), state
