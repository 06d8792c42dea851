"""Blocks of keys ranked by the products of a query with their means, and softmax over the best of them."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract.mask import Mask
from .dense import widen
from .pages import attend_gathered, list_keys
from .selected_keys import copy_tensors, find_largest
from .softmax.block_lists import BlockInputs, BlockOptions, attend
from .softmax.sdpa import pad_widths

COLUMNS = 64  # the means that some queries read are as many as those before their end, rounded up to this
RANKED_ROWS = 1024  # queries whose products with all means exist at a time


class BlockMeans(NamedTuple):
    """The mean key of each block ``[B, heads, blocks, D]``, in float64, and if any, ``[B or 1, blocks]``."""

    means: Tensor
    exists: Tensor

    @classmethod
    def of(cls, keys: Tensor, size: int, valid: Tensor | None = None) -> BlockMeans:
        """Of ``keys [B, heads, M, D]``. valid: ``[B, M]`` bool, the keys that count."""
        m = keys.shape[2]
        ones = torch.ones(1, m, dtype=torch.bool, device=keys.device) if valid is None else valid
        counts = F.pad(ones.double(), (0, -m % size)).unflatten(1, (-1, size)).sum(2)
        wide = keys.double() if valid is None else keys.double().masked_fill(~valid[:, None, :, None], 0)
        sums = F.pad(wide, (0, 0, 0, -m % size)).unflatten(2, (-1, size)).sum(3)
        return cls(sums / counts.clamp(min=1)[:, None, :, None], counts > 0)

    @classmethod
    def of_sums(cls, sums: Tensor, size: int, length: int) -> BlockMeans:
        """Of the sums of so many keys, ``[B, heads, capacity, D]``."""
        count = -(-length // size)
        counts = (length - size * torch.arange(count, device=sums.device)).clamp(max=size)
        return cls(sums[:, :, :count] / counts[:, None], torch.ones_like(counts[None], dtype=torch.bool))

    def before(self, block: int) -> BlockMeans:
        """The blocks before one, and up to a multiple of `COLUMNS` more: rounding depends on their number."""
        count = -(-max(block, 1) // COLUMNS) * COLUMNS
        return BlockMeans(self.means[:, :, :count], self.exists[:, :count])


def rank_blocks(q: Tensor, means: BlockMeans, own_block: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The earlier blocks with the largest products, of equal ones the first, and whether they exist, ``[B, heads, N,
    count]``. own_block: ``[N]``, the block of each query."""
    number = torch.arange(means.means.shape[2], device=q.device)
    products = q.detach().double() @ means.means.mT
    hidden = (number >= own_block[:, None]) | ~means.exists[:, None, None]
    values, order = find_largest(products.masked_fill(hidden, -inf), count)
    return order, values > -inf


def attend_listed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, means: BlockMeans, size: int, count: int) -> Tensor:
    """Causal softmax of each query over its own block and the ``count`` earlier ones that rank first."""
    (batch, heads, n, width), kv_heads, m = q.shape, k.shape[1], k.shape[2]
    own_block = mask.positions(n, m, device=q.device).div(size, rounding_mode="floor")
    count, start, lists = min(count, means.exists.shape[1]), mask.start(n, m), []
    for first in range(0, n, RANKED_ROWS):
        rows = slice(first, min(first + RANKED_ROWS, n))
        queries = q[:, :, rows].reshape(batch, kv_heads, -1, width)
        earlier = means.before((start + rows.stop - 1) // size)
        order, exists = rank_blocks(queries, earlier, own_block[rows].repeat(heads // kv_heads), count)
        order = F.pad(order.masked_fill(~exists, -1), (0, count - order.shape[-1]), value=-1)
        lists.append(order.unflatten(2, (heads // kv_heads, -1)))
    return attend_lists(q, k, v, mask, torch.cat(lists, 3), size)


def attend_lists(q: Tensor, k: Tensor, v: Tensor, mask: Mask, lists: Tensor, size: int) -> Tensor:
    """Causal softmax of each query over its own block and those of ``lists [B, Hkv, G, N, count]``, -1 for none."""
    (batch, heads, n, width), (kv_heads, m), value_width = q.shape, k.shape[1:3], v.shape[3]
    start, valid = mask.start(n, m), copy_tensors(mask).key_valid(m)
    rows, keys, values = pad_widths(widen(q), widen(k), widen(v))
    rows = rows.reshape(batch * kv_heads, heads // kv_heads, n, -1)
    valid = None if valid is None else valid.repeat_interleave(kv_heads, 0)
    inputs = BlockInputs(rows, keys.flatten(0, 1), values.flatten(0, 1), lists.flatten(0, 1), valid)
    out = attend(inputs, BlockOptions(width**-0.5, size, start))
    return out.reshape(batch, heads, n, -1)[..., :value_width].to(q.dtype)


def attend_listed_rows(q: Tensor, k: Tensor, v: Tensor, mask: Mask, means: BlockMeans, size: int, count: int) -> Tensor:
    """`attend_listed` for few queries: only the keys of their blocks are read, a query's at a time."""
    (batch, heads, n, width), (kv_heads, m) = q.shape, k.shape[1:3]
    positions = mask.positions(n, m, device=q.device).repeat(heads // kv_heads)
    queries = widen(q).reshape(batch, kv_heads, -1, width)
    own_block = positions.div(size, rounding_mode="floor")
    order, exists = rank_blocks(q.reshape(batch, kv_heads, -1, width), means, own_block, count)
    index, visible = list_keys(order, exists, positions, size)
    out = attend_gathered(mask.key_valid(m), index, visible, queries, k, v)
    return out.view(batch, heads, n, v.shape[3]).to(q.dtype)
