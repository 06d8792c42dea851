"""Softmax over a plan: its tiles one after another, joined by their log-sum-exps, with an exact gradient.

One autograd function keeps the inputs, the output and one log-sum-exp a row, and recomputes the weights in the backward
pass a few windows at a time, so memory grows with N and not with the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..derivatives import SoftmaxFunction
from ..half import fused_dtype
from ..softmax.fused import additive
from ..softmax.merge import attend, attend_backward, join
from .masks import LARGEST, add_mask, kept
from .tiles import Plan, Tile, Tiling


@dataclass(frozen=True, eq=False)
class Recipe:
    """A plan with what else a call needs: the heads of a group, the scale."""

    plan: Plan
    group: int
    scale: float

    def cast(self, part: str, q: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """Tensors in the dtype that the kernel is fastest in on most of the plan's pairs. part: see `fused_dtype`."""
        most = max((t for tiling in self.plan for t in tiling.tiles), key=lambda t: t.pairs, default=None)
        if most is None:
            return q, *others
        inner = fused_dtype(q, part, most.queries.size * self.group, most.keys.size)
        return tuple(x.to(inner) for x in (q, *others))

    def mask(
        self, tiling: Tiling, tile: Tile, first: int, last: int, like: Tensor, valid: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The additive mask of a step, ``[1 or Bh, 1 or windows, 1 or rows, keys]``, and the rows that see nothing.

        valid: ``[B, M]``, where there is padding; then the mask is made for this call alone.
        """
        if tile.rule is None and valid is None:
            return None, None
        if valid is None and not like.is_meta:
            span = (0, 1) if tile.mask is not None else (first, last)
            if self.group * tile.queries.size * tile.keys.size * (span[1] - span[0]) <= LARGEST:
                key = tile, *span, self.group, like.dtype, like.device
                return kept.find(key, lambda: add_mask(self._allowed(tiling, tile, *span, like.device), like.dtype))
        allowed = None if tile.rule is None else self._allowed(tiling, tile, first, last, like.device)
        if valid is not None:
            keys = tiling.positions(tile, first, last, like.device).clamp(0, valid.shape[1] - 1)
            seen = valid[:, keys].repeat_interleave(like.shape[0] // valid.shape[0], dim=0)[:, :, None]
            allowed = seen if allowed is None else allowed & seen
        assert allowed is not None
        return additive(allowed, like.dtype), ~allowed.any(-1)

    def _allowed(self, tiling: Tiling, tile: Tile, first: int, last: int, device: torch.device) -> Tensor:
        """Which pairs of a step count, for the rows of all heads of a group."""
        allowed = tiling.allowed(tile, first, last, device)
        assert allowed is not None
        return allowed[None].repeat_interleave(self.group, dim=2) if self.group > 1 else allowed[None]


def softmax_over_plan(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, recipe: Recipe) -> Tensor:
    """Attention of ``q [Bh, N, group, D]`` over ``k, v [Bh, M, D]``; rows in no tile are zero. valid: ``[B, M]``."""
    return cast(tuple[Tensor, Tensor], _Parts.apply(q, k, v, valid, recipe))[0]


def run_plan(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """The output of `softmax_over_plan`, and one log-sum-exp a row ``[Bh, N, group]``; no gradient."""
    dtype = q.dtype
    q, k, v = recipe.cast("forward", q, k, v)
    out = torch.zeros_like(q, dtype=_sums(q, recipe), memory_format=torch.contiguous_format)
    lse = torch.full(q.shape[:3], float("-inf"), dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
    for tiling in recipe.plan:
        keys, values = tiling.take(k), tiling.take(v)
        for tile, first, last in tiling.steps():
            mask, blind = recipe.mask(tiling, tile, first, last, q, valid)
            rows = tile.queries.fetch(q, first, last).flatten(2, 3)
            part_k, part_v = (tile.keys.fetch(x, first, last) for x in (keys, values))
            found, sums = attend(rows, part_k, part_v, mask, recipe.scale)
            if blind is not None:
                sums = sums.masked_fill(blind, float("-inf"))
            at = (x.unflatten(2, (-1, recipe.group)) for x in (found, sums))
            _put(tile.fresh, *(tile.queries.fetch(x, first, last) for x in (out, lse)), *at)
    return out.to(dtype), lse.masked_fill_(lse == float("-inf"), 0)  # exp(-inf - 0) is the 0 wanted


def gradients(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, out: Tensor, lse: Tensor, recipe: Recipe
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v of what `run_plan` gave."""
    dtype = q.dtype
    q, k, v, grad, out = recipe.cast("backward", q, k, v, grad.contiguous(), out)
    sums = _sums(q, recipe)
    dq, dk, dv = (torch.zeros_like(x, dtype=sums, memory_format=torch.contiguous_format) for x in (q, k, v))
    for tiling in recipe.plan:
        keys, values = tiling.take(k), tiling.take(v)
        into = [x if tiling.columns is None else torch.zeros_like(tiling.take(x)) for x in (dk, dv)]
        for tile, first, last in tiling.steps():
            g, r, o, s = (tile.queries.fetch(x, first, last).flatten(2, 3) for x in (grad, q, out, lse))
            part_k, part_v = (tile.keys.fetch(x, first, last) for x in (keys, values))
            mask, _ = recipe.mask(tiling, tile, first, last, q, valid)
            by_q, *by_keys = attend_backward(g, r, part_k, part_v, o, s, mask, recipe.scale)
            tile.queries.fetch(dq, first, last).add_(by_q.unflatten(2, (-1, recipe.group)))
            for target, found in zip(into, by_keys, strict=True):
                tile.keys.give_back(target, found.to(target.dtype), first, last)
        if tiling.columns is not None:
            for target, found in zip((dk, dv), into, strict=True):
                target.index_add_(1, tiling.columns.to(target.device), found)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


class _Parts(SoftmaxFunction):
    kernel = "the kernel of sparse patterns"
    forward = staticmethod(run_plan)
    gradients = staticmethod(gradients)


def _put(fresh: bool, out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    if fresh:
        out.copy_(part)
        lse.copy_(part_lse)
    else:
        join(out, lse, part, part_lse)


def _sums(q: Tensor, recipe: Recipe) -> torch.dtype:
    """What results are summed up in: half precision would lose digits at every join."""
    joined = any(not tile.fresh for tiling in recipe.plan for tile in tiling.tiles)
    return torch.promote_types(q.dtype, torch.float32) if joined else q.dtype
