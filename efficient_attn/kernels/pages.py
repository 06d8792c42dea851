"""Pages of keys: the bounds of a query's scores in each, and softmax over the pages that they select."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract.mask import Mask
from .dense import masked_softmax, widen
from .selected_keys import (
    attend_selected,
    copy_tensors,
    cut_rows,
    find_largest,
    recompute,
    spread_blocks,
    take_keys,
)

# the number of keys from which only the selected ones are read, in multiples of these: fewer are faster all at once
# (256 queries, heads of 64 and of 128 in groups of 3, float32, Intel Xeon Emerald Rapids: equal at 16 to 32 times)
LONG_CALL, LONG_STEP = 32, 4


class Pages(NamedTuple):
    """The least and greatest entries of the keys of each page in every dimension, ``[B, heads, pages, D]``; low is
    above high in a page without valid keys."""

    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, keys: Tensor, size: int, valid: Tensor | None = None) -> Pages:
        """Of ``keys [B, heads, M, D]``. valid: ``[B, M]`` bool, the keys that count."""
        missing = -keys.shape[2] % size
        bounds = []
        for filler, reduce in ((inf, Tensor.amin), (-inf, Tensor.amax)):
            x = keys if valid is None else keys.masked_fill(~valid[:, None, :, None], filler)
            bounds.append(reduce(F.pad(x, (0, 0, 0, missing), value=filler).unflatten(2, (-1, size)), 3))
        return cls(*bounds)

    def bound(self, q: Tensor) -> Tensor:
        """The largest score that any key of a page may have with ``q [B, heads, N, D]``, before the division by
        sqrt(D): ``[B, heads, N, pages]``, in float64."""
        q, low, high = q.double(), self.low.double(), self.high.double()
        exists = (self.low[..., 0] <= self.high[..., 0])[:, :, None]  # in all dimensions or in none
        # of the infinite entries of a page without keys, a column of NaN
        return (q.clamp(min=0) @ high.mT + q.clamp(max=0) @ low.mT).masked_fill(~exists, -inf)


def rank_pages(q: Tensor, pages: Pages, own_page: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The earlier pages with the largest bounds, of equal ones the first, and whether they exist, ``[B, heads, N,
    count]``. own_page: ``[N]``, the page of each query."""
    bounds = pages.bound(q)
    number = torch.arange(bounds.shape[-1], device=q.device)
    values, order = find_largest(bounds.masked_fill(number >= own_page[:, None], -inf), count)
    return order, values > -inf


def select_pages(q: Tensor, pages: Pages, own_page: Tensor, count: int) -> Tensor:
    """``[B, heads, N, pages]`` bool: each query's own page, and those of `rank_pages`."""
    order, exists = rank_pages(q, pages, own_page, count)
    number = torch.arange(pages.low.shape[2], device=q.device)
    counts = torch.zeros(*q.shape[:3], len(number), dtype=torch.int32, device=q.device)
    counts = counts.scatter_add(-1, order, exists.to(torch.int32))  # a place may occur again as one that does not exist
    return (counts > 0) | (number == own_page[:, None])


def attend_pages(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, size: int, count: int, pages: Pages | None = None
) -> Tensor:
    """Causal softmax of each query over its own page and others. Up to `LONG_CALL` times as many keys as it selects, or
    `LONG_STEP` times in a decode step, all scores are computed. pages: those of ``k`` in a step."""
    n, m, group, mask = q.shape[2], k.shape[2], q.shape[1] // k.shape[1], copy_tensors(mask)
    is_long = m > (LONG_CALL if pages is None else LONG_STEP) * (count + 1) * size
    pages = Pages.of(k.detach(), size, mask.key_valid(m)) if pages is None else pages
    positions, parts = mask.positions(n, m, device=q.device), []
    if not is_long:
        k, v = widen(k), widen(v)
    for rows in cut_rows(n, k, group):
        own_page = positions[rows].div(size, rounding_mode="floor")
        queries = widen(q[:, :, rows]).reshape(q.shape[0], k.shape[1], -1, q.shape[3])
        if not is_long:
            rule = partial(_mask_pages, queries.detach(), pages, own_page.repeat(group), count, size)
            parts.append(attend_selected(widen(q[:, :, rows]), k, v, mask.rows(rows, n, m), rule))
        else:
            order, exists = rank_pages(queries.detach(), pages, own_page.repeat(group), count)
            index, exists = list_keys(order, exists, positions[rows].repeat(group), size)
            out = recompute(partial(attend_gathered, mask.key_valid(m), index, exists), queries, k, v)
            parts.append(out.view(*q.shape[:2], -1, v.shape[3]))
    return torch.cat(parts, 2).to(q.dtype)


def _mask_pages(
    q: Tensor, pages: Pages, own_page: Tensor, count: int, size: int, scores: Tensor, visible: Tensor
) -> Tensor:
    """A rule of `attend_selected`: the visible keys of the selected pages."""
    selection = select_pages(q, pages, own_page, count).unflatten(2, (scores.shape[2], -1))
    return visible & spread_blocks(selection, size, visible.shape[-1])


def list_keys(order: Tensor, exists: Tensor, positions: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The keys of the pages in ``order [B, heads, N, count]`` and of the queries' own pages, ``[B, heads, N, keys]``,
    and which of them exist and are not later than the query."""
    own_page = positions.div(size, rounding_mode="floor").expand(order.shape[:3])[..., None]
    index = torch.cat([order, own_page], -1)[..., None] * size + torch.arange(size, device=order.device)
    exists = torch.cat([exists, torch.ones_like(own_page, dtype=torch.bool)], -1)[..., None]
    visible = exists & (index <= positions[:, None, None]) & (index >= 0)
    return index.flatten(3), visible.flatten(3)


def attend_gathered(valid: Tensor | None, index: Tensor, visible: Tensor, rows: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax of ``rows [B, Hkv, R, D]`` over the visible ones of the keys ``index [B, Hkv, R, count]``; no other keys
    are read. valid: ``[B, M]``."""
    (_, kv_heads, count, width), m = rows.shape, k.shape[2]
    visible = visible & (index < m)
    index = index.clamp(0, m - 1)
    if valid is not None:
        visible = visible & valid[:, None, None].expand(-1, kv_heads, count, -1).gather(3, index)
    keys, values = (widen(take_keys(x, index.flatten(2))).unflatten(2, (count, -1)) for x in (k, v))
    scores = (rows[:, :, :, None] @ keys.mT)[:, :, :, 0] * width**-0.5
    return (masked_softmax(scores, visible)[:, :, :, None] @ values)[:, :, :, 0]
