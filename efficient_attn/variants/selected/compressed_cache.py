"""The decode state of a mechanism that reads means of blocks of keys and values."""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ...contract.decode_state import KVCache, allocate
from ...kernels.compressed_blocks import BlockMeans


@dataclass(frozen=True, kw_only=True)
class CompressedCache(KVCache):
    """All keys and values so far, and the sums of those of each block, ``[B, Hkv, blocks, D or E]`` in float64."""

    block: int
    sums: Tensor | None = None
    value_sums: Tensor | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks that are allocated."""
        return -(-self.capacity // self.block)

    def with_sums(self) -> Self:
        """With sums of zeros, if keys are allocated."""
        if self.keys is None or self.values is None:
            return self
        sums, value_sums = (
            x.new_zeros((*x.shape[:2], self.blocks, x.shape[3]), dtype=torch.float64) for x in (self.keys, self.values)
        )
        return replace(self, sums=sums, value_sums=value_sums)

    def append(self, k: Tensor, v: Tensor) -> Self:
        """Append T positions and update the sums of their blocks."""
        state = super().append(k, v)
        assert state.keys is not None
        assert state.values is not None
        sums = self._add(self.sums, state.keys, state.length)
        return replace(state, sums=sums, value_sums=self._add(self.value_sums, state.values, state.length))

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

    @property
    def value_means(self) -> BlockMeans:
        """The means of values so far."""
        assert self.value_sums is not None
        return BlockMeans.of_sums(self.value_sums, self.block, self.length)
