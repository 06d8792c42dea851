"""Softmax over tiles: rectangles of query-key pairs, each query row in exactly one of them.

A tile is ``count`` equal windows. Their keys are either a zero-copy view (windows that advance with the queries) or
gathered blocks. One autograd function serves both: it keeps the inputs, the output and one log-sum-exp a row, and
recomputes the weights in the backward pass a few windows at a time, so memory grows with N and not with the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

VIEW_CHUNK = 16  # windows a step: more costs fresh memory and gains no speed
GATHER_CHUNK = 8  # the same where keys are copied together first


@dataclass(frozen=True, eq=False)
class Tile:
    """Windows ``w = 0 .. count-1``: queries ``[row + w * rows, + rows)``, each over ``span`` keys.

    View tile: window w sees keys ``[col + w * rows, + span)``. Gather tile: it sees the key blocks ``blocks[w]``
    (``[count, c]`` block numbers, -1 for none), each of ``block`` keys.
    shared_mask: all windows have the mask of the first, shifted.
    """

    row: int
    rows: int
    count: int
    span: int
    col: int = 0
    blocks: Tensor | None = None
    block: int = 0
    shared_mask: bool = False

    @property
    def chunk(self) -> int:
        return VIEW_CHUNK if self.blocks is None else GATHER_CHUNK

    def keys_of(self, first: int, last: int, device: torch.device) -> Tensor:
        """The key positions of windows [first, last), ``[windows, span]``; negative for none."""
        if self.blocks is None:
            w = torch.arange(first, last, device=device) * self.rows + self.col
            return w[:, None] + torch.arange(self.span, device=device)
        blocks = self.blocks[first:last].to(device)
        keys = blocks[:, :, None] * self.block + torch.arange(self.block, device=device)
        return keys.masked_fill(blocks[:, :, None] < 0, -1).flatten(1)

    def queries_of(self, first: int, last: int, device: torch.device) -> Tensor:
        """The query indices of windows [first, last), ``[windows, rows]``."""
        return torch.arange(self.row + first * self.rows, self.row + last * self.rows, device=device).view(
            -1, self.rows
        )

    def fetch(self, x: Tensor, first: int, last: int) -> Tensor:
        """The windows' keys (or values) ``[Bh, windows, span, width]`` from ``x [Bh, M, width]``."""
        if self.blocks is None:
            view = x[:, self.col + first * self.rows : self.col + (last - 1) * self.rows + self.span]
            return view.unfold(1, self.span, self.rows).transpose(-1, -2)
        return x[:, self.keys_of(first, last, x.device).clamp(0, x.shape[1] - 1)]

    def give_back(self, grad: Tensor, part: Tensor, first: int, last: int) -> None:
        """Add the windows' gradient ``part`` into ``grad [Bh, M, width]``: the transpose of `fetch`."""
        if self.blocks is not None:
            keys = self.keys_of(first, last, grad.device).clamp(0, grad.shape[1] - 1)
            grad.index_add_(1, keys.flatten(), part.flatten(1, 2))
            return
        start = self.col + first * self.rows
        for offset in range(0, self.span, self.rows):  # pieces as wide as the advance do not overlap
            width = min(self.rows, self.span - offset)
            ends = range(start + offset, start + offset + (last - first) * self.rows, self.rows)
            target = grad.as_strided(
                (grad.shape[0], last - first, width, grad.shape[2]),
                (grad.stride(0), self.rows * grad.stride(1), grad.stride(1), grad.stride(2)),
                grad.storage_offset() + ends[0] * grad.stride(1),
            )
            target.add_(part[:, :, offset : offset + width])


Allowed = Callable[[Tensor, Tensor], Tensor]  # (query indices [.., rows, 1], keys [.., 1, span]) -> bool


@dataclass(frozen=True, eq=False)
class Job:
    """What stays the same over all tiles of a call: the tiles, who may see whom, padding ``[B, M]``, the group size."""

    tiles: tuple[Tile, ...]
    allowed: Allowed
    valid: Tensor | None
    group: int
    scale: float

    def steps(self) -> Iterator[tuple[Tile, int, int, slice]]:
        """Tiles cut into chunks of windows, each with the rows that it fills."""
        for tile in self.tiles:
            for first in range(0, tile.count, tile.chunk):
                last = min(first + tile.chunk, tile.count)
                rows = slice((tile.row + first * tile.rows) * self.group, (tile.row + last * tile.rows) * self.group)
                yield tile, first, last, rows

    def mask(self, tile: Tile, first: int, last: int, batch: int, like: Tensor) -> Tensor:
        """The additive mask ``[1 or Bh, 1 or windows, rows * group, span]`` of a chunk."""
        shared = tile.shared_mask and self.valid is None
        end = first + 1 if shared else last
        keys = tile.keys_of(first, end, like.device)
        allowed = self.allowed(tile.queries_of(first, end, like.device)[:, :, None], keys[:, None, :])
        allowed = (allowed & (keys >= 0)[:, None, :])[None]
        if self.valid is not None:
            seen = self.valid[:, keys.clamp(0, self.valid.shape[1] - 1)][:, :, None, :]
            allowed = (allowed & seen).repeat_interleave(batch // self.valid.shape[0], dim=0)
        if self.group > 1:
            allowed = allowed.repeat_interleave(self.group, dim=2)
        return torch.zeros_like(allowed, dtype=like.dtype).masked_fill_(~allowed, float("-inf"))


def softmax_over_tiles(q: Tensor, k: Tensor, v: Tensor, job: Job) -> Tensor:
    """Attention of ``q [Bh, N * group, D]`` over ``k, v [Bh, M, D]``, tile by tile; rows in no tile are zero."""
    return cast(Tensor, _CpuTiles.apply(q, k, v, job)) if q.device.type == "cpu" else through_sdpa(q, k, v, job)


def through_sdpa(q: Tensor, k: Tensor, v: Tensor, job: Job) -> Tensor:
    """The same by public calls and autograd, for devices without the CPU's kernel."""
    out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
    for tile, first, last, rows in job.steps():
        mask = job.mask(tile, first, last, q.shape[0], q)
        windows = _windows(q, tile, first, last, job.group)
        keys, values = tile.fetch(k, first, last), tile.fetch(v, first, last)
        part = F.scaled_dot_product_attention(windows, keys, values, attn_mask=mask, scale=job.scale)
        out[:, rows] = part.flatten(1, 2)
    return out


def _windows(x: Tensor, tile: Tile, first: int, last: int, group: int) -> Tensor:
    size = tile.rows * group
    start = tile.row * group
    return x[:, start + first * size : start + last * size].unflatten(1, (last - first, size))


class _CpuTiles(torch.autograd.Function):
    """The CPU flash kernel over tiles, with the gradient that its log-sum-exps allow."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, job: Job) -> Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
        sums: list[Tensor] = []
        for tile, first, last, rows in job.steps():
            part, lse = kernel(
                _windows(q, tile, first, last, job.group),
                tile.fetch(k, first, last),
                tile.fetch(v, first, last),
                attn_mask=job.mask(tile, first, last, q.shape[0], q),
                scale=job.scale,
            )
            out[:, rows] = part.flatten(1, 2)
            sums.append(lse)
        ctx.job = job
        ctx.save_for_backward(q, k, v, out, *sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *sums = ctx.saved_tensors
        job: Job = ctx.job
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grad = grads[0].contiguous()
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for lse, (tile, first, last, _) in zip(sums, job.steps(), strict=True):
            part_q, part_k, part_v = kernel(
                *(_windows(x, tile, first, last, job.group) for x in (grad, q)),
                *(tile.fetch(x, first, last) for x in (k, v)),
                _windows(out, tile, first, last, job.group),
                lse,
                0.0,
                False,
                attn_mask=job.mask(tile, first, last, q.shape[0], q),
                scale=job.scale,
            )
            _windows(dq, tile, first, last, job.group).copy_(part_q)
            tile.give_back(dk, part_k, first, last)
            tile.give_back(dv, part_v, first, last)
        return dq, dk, dv, None
