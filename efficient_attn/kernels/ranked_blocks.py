"""Blocks of keys ranked by their scores for each query, and softmax over the best of them."""

from __future__ import annotations

from collections.abc import Callable
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

COLUMNS = 64  # the blocks whose scores some queries have are as many as those before their end, rounded up to this
RANKED_ROWS = 1024  # queries whose scores of all blocks exist at a time

# from queries ``[B, Hkv, rows, D]`` and something of each block ``[B, Hkv, blocks, W]`` to ``[B, Hkv, rows, blocks]``
Score = Callable[[Tensor, Tensor], Tensor]


def rank_blocks(scores: Tensor, exists: Tensor, own_block: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The blocks before a query's own with the largest ``scores [B, heads, N, blocks]``, of equal ones the first, and
    whether they exist, ``[B, heads, N, count]``. exists: ``[B or 1, blocks]``. own_block: ``[N]``."""
    number = torch.arange(scores.shape[3], device=scores.device)
    hidden = (number >= own_block[:, None]) | ~exists[:, None, None]
    values, order = find_largest(scores.masked_fill(hidden, -inf), count)
    return order, values > -inf


class Summaries(NamedTuple):
    """Something of each block, ``[B, Hkv, blocks, W]``, and which blocks have keys, ``[B or 1, blocks]``."""

    values: Tensor
    exists: Tensor


def list_best(q: Tensor, score: Score, summaries: Summaries, mask: Mask, m: int, size: int, count: int) -> Tensor:
    """The blocks of ``size`` keys that `rank_blocks` finds for ``q [B, Hkv, G, N, D]`` over m keys, -1 for none:
    ``[B, Hkv, G, N, count]``."""
    (values, exists), (group, n), lists = summaries, q.shape[2:4], []
    count = min(count, values.shape[2])
    own_block, start = mask.positions(n, m, device=q.device).div(size, rounding_mode="floor"), mask.start(n, m)
    for first in range(0, n, RANKED_ROWS):
        rows = slice(first, min(first + RANKED_ROWS, n))
        earlier = count_columns((start + rows.stop - 1) // size)
        scores = score(q[:, :, :, rows].flatten(2, 3), values[:, :, :earlier])
        order, is_listed = rank_blocks(scores, exists[:, :earlier], own_block[rows].repeat(group), count)
        order = F.pad(order.masked_fill(~is_listed, -1), (0, count - order.shape[-1]), value=-1)
        lists.append(order.unflatten(2, (group, -1)))
    return torch.cat(lists, 3)


def count_columns(blocks: int) -> int:
    """A number of blocks, rounded up to a multiple of `COLUMNS`: the rounding of scores depends on it."""
    return -(-max(blocks, 1) // COLUMNS) * COLUMNS


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


def attend_lists_rows(q: Tensor, k: Tensor, v: Tensor, mask: Mask, lists: Tensor, size: int) -> Tensor:
    """`attend_lists` for few queries: only the keys of their blocks are read, a query's at a time."""
    (batch, heads, n, width), (kv_heads, m) = q.shape, k.shape[1:3]
    positions = mask.positions(n, m, device=q.device).repeat(heads // kv_heads)
    queries, order = widen(q).reshape(batch, kv_heads, -1, width), lists.flatten(2, 3)
    index, visible = list_keys(order, order >= 0, positions, size)
    out = attend_gathered(mask.key_valid(m), index, visible, queries, k, v)
    return out.view(batch, heads, n, v.shape[3]).to(q.dtype)
