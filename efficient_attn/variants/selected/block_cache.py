"""The decode states of mechanisms that read means of blocks."""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.decode_state import KVCache, allocate
from ...kernels.block_means import BlockMeans


@dataclass(frozen=True, kw_only=True)
class BlockCache(KVCache):
    """All keys and values so far, and the sums of the keys of each block, ``[B, Hkv, blocks, D]``."""

    block: int
    sums: Tensor | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks that are allocated."""
        return -(-self.capacity // self.block)

    def with_sums(self) -> Self:
        """With sums of zeros, if keys are allocated."""
        return self if self.keys is None else replace(self, sums=_make_sums(self.keys, self.blocks))

    def append(self, k: Tensor, v: Tensor) -> Self:
        """Append T positions and update the sums of their blocks."""
        state = super().append(k, v)
        assert state.keys is not None
        return replace(state, sums=self._add(self.sums, state.keys, state.length))

    def _add(self, sums: Tensor | None, rows: Tensor, length: int) -> Tensor:
        """The sums of the blocks of ``rows [B, Hkv, capacity, E]``, of which those since `length` of this are new."""
        first = self.length // self.block
        changed = rows[:, :, first * self.block : length].double()
        changed = F.pad(changed, (0, 0, 0, -changed.shape[2] % self.block)).unflatten(2, (-1, self.block)).sum(3)
        sums = allocate(sums, changed, self.blocks)
        sums[:, :, first : first + changed.shape[2]] = changed
        return sums

    @property
    def means(self) -> BlockMeans:
        """The means of keys so far."""
        assert self.sums is not None
        return BlockMeans.of_sums(self.sums, self.block, self.length)


@dataclass(frozen=True, kw_only=True)
class CompressedCache(BlockCache):
    """Also the sums of the values of each block."""

    value_sums: Tensor | None = None

    def with_sums(self) -> Self:
        state = super().with_sums()
        return state if state.values is None else replace(state, value_sums=_make_sums(state.values, self.blocks))

    def append(self, k: Tensor, v: Tensor) -> Self:
        state = super().append(k, v)
        assert state.values is not None
        return replace(state, value_sums=self._add(self.value_sums, state.values, state.length))

    @property
    def value_means(self) -> BlockMeans:
        """The means of values so far."""
        assert self.value_sums is not None
        return BlockMeans.of_sums(self.value_sums, self.block, self.length)


def _make_sums(rows: Tensor, blocks: int) -> Tensor:
    return rows.new_zeros((*rows.shape[:2], blocks, rows.shape[3]), dtype=torch.float64)
