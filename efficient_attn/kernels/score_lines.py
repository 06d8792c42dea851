"""Columns and diagonals of the causal score matrix: their selection by the last queries, and softmax over them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .dense import masked_softmax, widen
from .selected_keys import recompute

ROWS = 16  # queries whose keys are gathered together; more leave the cache


def select_lines(q: Tensor, k: Tensor, queries: int, columns: int, diagonals: int) -> tuple[Tensor, Tensor]:
    """The keys ``[B, H, columns]`` and the distances ``[B, H, diagonals]`` with the largest sums of the causal weights
    of the last queries, in float64. q ``[B, H, N, D]``, k ``[B, Hkv, N, D]``."""
    batch, heads, n, width = q.shape
    last = min(queries, n)
    rows = q[:, :, n - last :].double().reshape(batch, k.shape[1], -1, width)
    scores = (rows @ k.double().mT * width**-0.5).view(batch, heads, last, n)
    i, j = torch.arange(n - last, n, device=q.device)[:, None], torch.arange(n, device=q.device)
    weights = masked_softmax(scores, j <= i)
    distance = (i - j).clamp(min=0).expand(weights.shape)
    by_distance = torch.zeros_like(weights[:, :, 0]).scatter_add_(-1, distance.flatten(2), weights.flatten(2))
    by_distance[..., 0] = torch.inf  # a query sees its own key, so that every row has one
    return _largest(weights.sum(2), columns), _largest(by_distance, diagonals)


def _largest(sums: Tensor, count: int) -> Tensor:
    """The indices of the largest entries, of equal ones the first, in increasing order."""
    order = sums.sort(dim=-1, descending=True, stable=True).indices
    return order[..., :count].sort(dim=-1).values


def attend_lines(q: Tensor, k: Tensor, v: Tensor, columns: Tensor, distances: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the keys on the lines, some queries at a time."""
    parts = []
    for first in range(0, q.shape[2], ROWS):
        positions = torch.arange(first, min(first + ROWS, q.shape[2]), device=q.device)
        run = partial(_attend_rows, columns, distances, positions)
        parts.append(recompute(run, q[:, :, first : first + ROWS], k, v))
    return torch.cat(parts, 2)


def _attend_rows(columns: Tensor, distances: Tensor, positions: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group, queries, split = q.shape[1] // k.shape[1], widen(q), columns.shape[2]
    column_keys, column_values = (widen(_gather(x, columns, group)) for x in (k, v))
    index = positions[:, None] - distances[:, :, None]  # [B, H, rows, diagonals]
    # a key on a column as well counts once
    nearest = torch.searchsorted(columns, index.flatten(2)).clamp(max=split - 1)
    on_column = columns.gather(2, nearest) == index.flatten(2)
    visible = (index >= 0) & ~on_column.view(index.shape)
    flat = index.clamp(min=0).flatten(2)
    keys, values = (widen(_gather(x, flat, group)).unflatten(2, (len(positions), -1)) for x in (k, v))
    scores = torch.cat([queries @ column_keys.mT, (queries[:, :, :, None] @ keys.mT)[:, :, :, 0]], -1)
    allowed = torch.cat([columns[:, :, None] <= positions[:, None], visible], -1)
    weights = masked_softmax(scores * q.shape[3] ** -0.5, allowed)
    out = weights[..., :split] @ column_values + (weights[..., None, split:] @ values)[:, :, :, 0]
    return out.to(q.dtype)


def _gather(x: Tensor, index: Tensor, group: int) -> Tensor:
    """``x [B, Hkv, N, E]`` at the positions ``[B, H, count]`` of each head. Whole rows are copied, which is faster
    than `torch.gather`."""
    batch, kv_heads, n, width = x.shape
    first = torch.arange(batch * kv_heads, device=x.device).repeat_interleave(group) * n
    rows = index + first.view(batch, -1, 1)
    return x.reshape(-1, width).index_select(0, rows.flatten()).view(*index.shape, width)
