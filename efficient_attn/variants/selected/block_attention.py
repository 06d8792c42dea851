"""Attention to blocks of keys that a query selects by summaries of their contents."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract import Attention, Growth, Mask, Shape, Traits, Values, require_values
from ...contract.decode_state import KVCache, allocate, preallocate
from ...errors import UnsupportedError, UsageError, check_at_least_one
from ...kernels.dense import softmax_attention
from ...kernels.ranked_blocks import RANKED_ROWS, Summaries, attend_lists, attend_lists_rows, list_best, rank_blocks
from ...kernels.selected_keys import spread_blocks
from ...kernels.softmax.block_lists import TILE_ROWS
from ...patterns.pair_counts import count_block_pairs
from .selected_attention import BLOCK_TRAITS


@dataclass(frozen=True, kw_only=True)
class SummaryCache(KVCache):
    """All keys and values so far, and the summaries of blocks whose keys are all there, ``[B, Hkv, blocks, W]``."""

    block: int
    summaries: Tensor | None = None


class BlockAttention(Attention):
    """Softmax over a query's own block of keys, and the topk - 1 earlier ones with the largest scores, for each query
    and head. A subclass summarises blocks and scores the summaries. Causal only.

    block: in keys. Blocks are read by all their queries together; gradients are those of the selected keys. A decode
    step reads the summaries and the selected blocks.
    """

    backends = ("blocks", "dense")

    def __init__(self, *, block: int, topk: int) -> None:
        super().__init__()
        check_at_least_one(self.label, block=block, topk=topk)
        self.block, self.topk = block, topk

    def summarise(self, keys: Tensor, valid: Tensor) -> Tensor:
        """Summaries ``[B, Hkv, blocks, W]`` of ``keys [B, Hkv, blocks, block, D]``, which are zeros where ``valid [B or
        1, 1, blocks, block]`` is false: masked ones, and those beyond the last. Without gradients."""
        raise UnsupportedError(f"{type(self).__name__} has no summaries of blocks")

    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        """Scores ``[B, Hkv, rows, blocks]`` of blocks for ``q [B, Hkv, rows, D]``, the rows of all heads that share a
        key-value head. In float64, rounding rarely decides which of two blocks is selected. Without gradients."""
        raise UnsupportedError(f"{type(self).__name__} has no scores of blocks")

    @property
    def traits(self) -> Traits:
        return BLOCK_TRAITS

    @property
    def growth(self) -> Growth:
        return Growth("O(N^2)", "O(N)", self._cost, self._step_cost)

    def _cost(self, n: int, m: int, causal: bool) -> float:
        """Scores of all blocks, and the pairs of selected ones."""
        return n * m / self.block / 2 + self.pairs(n, m, causal)

    def _step_cost(self, m: int) -> float:
        return m / self.block + min(m, self.block * self.topk)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        n, m = q.shape[2], k.shape[2]
        own_block = mask.positions(n, m, device=q.device).div(self.block, rounding_mode="floor")
        with torch.no_grad():
            keys = k.detach().repeat_interleave(q.shape[1] // k.shape[1], 1)
            summaries = self._summarise(keys, mask.key_valid(m))
            order, is_listed = rank_blocks(
                self._score(q.detach(), summaries.values), summaries.exists, own_block, self.topk - 1
            )
        number = torch.arange(-(-m // self.block), device=q.device)
        selection = (number == own_block[:, None]) | ((order[..., None] == number) & is_listed[..., None]).any(-2)
        return softmax_attention(q, k, v, mask.dense(n, m, device=q.device) & spread_blocks(selection, self.block, m))

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        with torch.no_grad():
            summaries = self._summarise(k.detach(), mask.key_valid(k.shape[2]))
        lists = self._list_blocks(q, k, mask, summaries)
        return attend_lists(q, k, v, mask, lists, self.block)

    def _summarise(self, k: Tensor, valid: Tensor | None) -> Summaries:
        """The summaries of all keys. valid: ``[B, M]``."""
        missing = -k.shape[2] % self.block
        valid = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if valid is None else valid
        valid = F.pad(valid, (0, missing)).unflatten(1, (-1, self.block))
        keys = (F.pad(k, (0, 0, 0, missing)) if missing else k).unflatten(2, (-1, self.block))
        summaries = self.summarise(keys, valid[:, None])
        if summaries.ndim != 4 or summaries.shape[:3] != keys.shape[:3]:
            sizes = f"[B, Hkv, blocks, W] = {[*keys.shape[:3], 'W']}, not {list(summaries.shape)}"
            raise UsageError(f"{self.label}: summarise must return {sizes}")
        return Summaries(summaries, valid.any(-1))

    def _score(self, q: Tensor, summaries: Tensor) -> Tensor:
        scores = self.score(q, summaries)
        if scores.shape != (*q.shape[:3], summaries.shape[2]) or not scores.is_floating_point():
            sizes = f"[B, Hkv, rows, blocks] = {[*q.shape[:3], summaries.shape[2]]}"
            raise UsageError(
                f"{self.label}: score must return numbers {sizes}, not {list(scores.shape)} of {scores.dtype}"
            )
        return scores

    def _list_blocks(self, q: Tensor, k: Tensor, mask: Mask, summaries: Summaries) -> Tensor:
        rows = q.detach().unflatten(1, (k.shape[1], -1))
        if self.topk == 1:
            return torch.empty(*rows.shape[:4], 0, dtype=torch.long, device=q.device)
        with torch.no_grad():
            return list_best(rows, self._score, summaries, mask, k.shape[2], self.block, self.topk - 1)

    def pairs(self, n: int, m: int, causal: bool) -> int:
        return count_block_pairs(n, m, self.block, self.topk - 1)

    def pairs_computed(self, n: int, m: int, causal: bool) -> int:
        return self.pairs(n, m, causal)

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        """With the scores of the queries that are ranked together, in float64 and twice."""
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        rows, blocks = min(shape.n, RANKED_ROWS), -(-shape.m // self.block)
        is_ranked = self.backend != "dense" and self.topk > 1
        return size + is_ranked * 16 * shape.batch * shape.heads * rows * blocks

    def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> SummaryCache:
        state = SummaryCache(max_len, block=self.block)
        state = preallocate(state, self.dims.cache_sizes(batch, self.kv_heads), dtype, device)
        if state.keys is None:
            return state
        (_, heads, _, width) = state.keys.shape
        summaries, _ = self._summarise(state.keys.new_zeros(batch, heads, self.block, width), None)
        return replace(state, summaries=allocate(None, summaries, max_len // self.block))

    def why_no_starts(self) -> str | None:
        return "its blocks count from the first position"

    def advance(
        self, q: Tensor, k: Tensor, v: Tensor, state: SummaryCache, **inputs: Tensor
    ) -> tuple[Tensor, SummaryCache]:
        state = self._append(k, v, state)
        keys, values = state.filled()
        if self.backend == "dense":
            return self.run(q, keys, values, state.mask), state
        assert state.summaries is not None
        n_blocks = state.length // self.block
        exists = torch.ones(1, n_blocks, dtype=torch.bool, device=k.device)
        summaries = Summaries(state.summaries[:, :, :n_blocks], exists)
        lists = self._list_blocks(q, keys, state.mask, summaries)
        attend = attend_lists_rows if q.shape[2] < TILE_ROWS else attend_lists
        return attend(q, keys, values, state.mask, lists, self.block), state

    def absorb(self, k: Tensor, v: Values, state: Any, **inputs: Tensor) -> Any:
        if isinstance(state, SummaryCache):
            return self._append(k, require_values(v), state)
        return super().absorb(k, v, state, **inputs)  # of rows with different starts

    def _append(self, k: Tensor, v: Tensor, state: SummaryCache) -> SummaryCache:
        first, state = state.length // self.block, state.append(k, v)
        assert state.keys is not None
        last = state.length // self.block
        if last == first and state.summaries is not None:
            return state
        with torch.no_grad():
            keys = state.keys[:, :, first * self.block : max(last, first + 1) * self.block]
            summaries, _ = self._summarise(keys.detach(), None)
        buffer = allocate(state.summaries, summaries, state.capacity // self.block)
        buffer[:, :, first:last] = summaries[:, :, : last - first]
        return replace(state, summaries=buffer)
