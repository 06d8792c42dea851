"""Blocks compressed to their means: softmax over the means of past blocks, and ranks of blocks by its weights."""

from functools import partial
from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .dense import masked_softmax
from .ranked_blocks import count_columns
from .selected_keys import find_largest, recompute
from .softmax.sdpa import attend_fused

ROWS = 256  # queries whose weights exist at a time


class BlockMeans(NamedTuple):
    """The mean key of each block ``[B, heads, blocks, D]``, in float64, and if any, ``[B or 1, blocks]``."""

    means: Tensor
    exists: Tensor

    @classmethod
    def of(cls, keys: Tensor, size: int, valid: Tensor | None = None) -> "BlockMeans":
        """Of ``keys [B, heads, M, D]``. valid: ``[B, M]`` bool, the keys that count."""
        m = keys.shape[2]
        ones = torch.ones(1, m, dtype=torch.bool, device=keys.device) if valid is None else valid
        counts = F.pad(ones.double(), (0, -m % size)).unflatten(1, (-1, size)).sum(2)
        wide = keys.double() if valid is None else keys.double().masked_fill(~valid[:, None, :, None], 0)
        sums = F.pad(wide, (0, 0, 0, -m % size)).unflatten(2, (-1, size)).sum(3)
        return cls(sums / counts.clamp(min=1)[:, None, :, None], counts > 0)

    @classmethod
    def of_sums(cls, sums: Tensor, size: int, length: int) -> "BlockMeans":
        """Of the sums of so many keys, ``[B, heads, capacity, D]``."""
        count = -(-length // size)
        counts = (length - size * torch.arange(count, device=sums.device)).clamp(max=size)
        return cls(sums[:, :, :count] / counts[:, None], torch.ones_like(counts[None], dtype=torch.bool))

    def before(self, block: int) -> "BlockMeans":
        """The blocks before one, and up to a multiple of `COLUMNS` more: rounding depends on their number."""
        count = count_columns(block)
        return BlockMeans(self.means[:, :, :count], self.exists[:, :count])


class Compressed(NamedTuple):
    """The means of the keys and of the values of each block of ``size`` keys."""

    keys: BlockMeans
    values: BlockMeans
    size: int

    @classmethod
    def of(cls, k: Tensor, v: Tensor, size: int, valid: Tensor | None = None) -> "Compressed":
        """Of ``k, v [B, heads, M, ..]``. valid: ``[B, M]`` bool, the keys that count."""
        return cls(BlockMeans.of(k, size, valid), BlockMeans.of(v, size, valid), size)

    def before(self, end: int) -> "Compressed":
        """The blocks of keys before a position, and up to a multiple of `COLUMNS` more."""
        block = -(-end // self.size)
        return Compressed(self.keys.before(block), self.values.before(block), self.size)

    def visible(self, positions: Tensor) -> Tensor:
        """The blocks that end at a query's position or before, ``[B or 1, 1, N, blocks]`` bool."""
        number = torch.arange(self.keys.exists.shape[1], device=positions.device)
        past = (number + 1) * self.size - 1 <= positions[:, None]
        return past & self.keys.exists[:, None, None]


def attend_compressed(q: Tensor, compressed: Compressed, start: int) -> Tensor:
    """softmax(q . mean keys / sqrt(D)) mean values over the blocks that end at a query's position or before, zeros
    where there is none. ``q [B, H, N, D]``, in whose dtype the result is. start: the position of the first query."""
    n = q.shape[2]
    visible = compressed.visible(torch.arange(n, device=q.device) + start)
    keys, values = (x.means.to(q.dtype) for x in compressed[:2])
    columns, parts = keys.shape[2], []
    for first in range(0, n, ROWS):
        rows = slice(first, min(first + ROWS, n))
        # their number depends on the place of these rows alone, because rounding depends on it
        last = (start + first + ROWS) // compressed.size
        count = count_columns(last)
        some = [F.pad(x[:, :, :count], (0, 0, 0, max(count - columns, 0))) for x in (keys, values)]
        allowed = F.pad(visible[..., rows, :count], (0, max(count - columns, 0)))
        parts.append(recompute(partial(_attend_visible, allowed), q[:, :, rows], *some))
    return torch.cat(parts, 2)


def _attend_visible(visible: Tensor, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Rows without visible keys are zeros."""
    out = attend_fused(q, keys, values, allowed=visible)
    return out.masked_fill(~visible.any(-1, keepdim=True), 0)


def list_compressed(
    q: Tensor, compressed: Compressed, positions: Tensor, count: int, *, start: int | None = None
) -> Tensor:
    """For all heads of a group, a query's first block and the one before its own, then those whose weights in
    `attend_compressed` have the largest mean over the group, of equal ones the first: ``[B, Hkv, N, count]``, -1 for
    none; the own block is not listed. start: the position of the first query, if positions are consecutive; later
    blocks are then not read."""
    n, lists = q.shape[2], []
    count = min(count, compressed.keys.exists.shape[1])
    for rows in (slice(first, min(first + ROWS, n)) for first in range(0, n, ROWS)):
        earlier = compressed if start is None else compressed.before(start + rows.stop)
        listed = _list_rows(q[:, :, rows], earlier, positions[rows], count)
        lists.append(F.pad(listed, (0, count - listed.shape[-1]), value=-1))
    return torch.cat(lists, 2)


def _list_rows(q: Tensor, compressed: Compressed, positions: Tensor, count: int) -> Tensor:
    means = compressed.keys.means
    queries = q.detach().double().unflatten(1, (means.shape[1], -1))
    scores = queries @ means.detach()[:, :, None].mT * q.shape[3] ** -0.5
    mass = masked_softmax(scores, compressed.visible(positions)[:, :, None]).mean(2)
    number = torch.arange(mass.shape[-1], device=q.device)
    own_block = positions.div(compressed.size, rounding_mode="floor")[:, None]
    mass = mass.masked_fill(number == own_block - 1, 2.0).masked_fill(number == 0, 3.0)  # weights are at most 1
    hidden = (number >= own_block) | ~compressed.keys.exists[:, None, None]
    values, places = find_largest(mass.masked_fill(hidden, -inf), count)
    return places.masked_fill(values == -inf, -1)
