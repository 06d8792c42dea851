"""Softmax over rounds of sorted chunks, with an exact gradient: the kernel of hashed attention, eager and as an op."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ..dense import wide
from ..derivatives import SoftmaxFunction, make_softmax_op
from ..half import fused_dtype
from ..softmax.merge import attend, attend_backward, join
from ..traced import traced
from .lsh import Rounds
from .tiles import ROWS_A_SLAB, ROWS_A_TILE, Layout, Recipe, gather


def softmax_over_rounds(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Tensor:
    """Attention of ``q [R, N, D]`` over the unit vectors of ``k [R, N, D]`` and ``v [R, N, D]``.

    A query sees itself only where it sees nothing else; padded positions, whose v is zero, get zeros.
    """
    rows, rounds = (x.flatten(0, 1) for x in (q, k, v)), recipe.rounds
    integers = rounds.order, rounds.chunk, rounds.lengths
    run = _rounds if traced(q) else _Rounds.apply
    out = run(*rows, inverse_norms(k.detach()).flatten(), *integers, rounds.size, recipe.causal, recipe.scale)
    return cast(tuple[Tensor, Tensor], out)[0].view(q.shape)


def inverse_norms(k: Tensor) -> Tensor:
    """1 / |k|, in float32 or wider, and 0 for vectors of no length: they become zeros, without a gradient."""
    norm = torch.linalg.vector_norm(wide(k), dim=-1)
    least = torch.finfo(norm.dtype).tiny
    return torch.where(norm < least, 0, 1 / norm.clamp(min=least))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inverse: Tensor,
    order: Tensor,
    chunk: Tensor,
    lengths: Tensor | None,
    size: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    recipe = _recipe(order, chunk, lengths, size, causal, scale)
    inner = _inner(q, "forward", recipe)
    out = torch.empty_like(q, dtype=wide(q[:0]).dtype)
    lse = out.new_empty(len(out))
    for layout, slab in recipe.tiles():
        mask, blind = layout.mask(slab, inner)
        at = layout.keys(slab)
        mine = layout.queries(at, slab)
        keys, values = _keys(layout, at, k, v, inverse, inner)
        found, sums = _attend(gather(q, mine).to(inner), keys, values, mask, recipe.scale)
        sums = sums.masked_fill(blind, float("-inf"))
        _put(layout.first, out, lse, *(layout.trim(x, slab) for x in (mine, found, sums)))
    alone = _alone(lse)
    return out.index_copy_(0, alone, v.index_select(0, alone).to(out.dtype)).to(q.dtype), lse


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inverse: Tensor,
    order: Tensor,
    chunk: Tensor,
    lengths: Tensor | None,
    out: Tensor,
    lse: Tensor,
    size: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    recipe, alone, grad = _recipe(order, chunk, lengths, size, causal, scale), _alone(lse), grad.contiguous()
    lse = lse.index_fill(0, alone, 0)  # exp(-inf - 0) is the 0 wanted
    inner = _inner(q, "backward", recipe)
    dq, dk, dv = (torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v))
    for layout, slab in recipe.tiles():
        mask, _ = layout.mask(slab, inner)
        at = layout.keys(slab)
        mine = layout.queries(at, slab)
        g, rows, o = (gather(x, mine).to(inner) for x in (grad, q, out))
        keys, values = _keys(layout, at, k, v, inverse, inner)
        by_q, by_k, by_v = _attend_backward(g, rows, keys, values, o, gather(lse, mine), mask, scale=recipe.scale)
        dq.index_add_(0, layout.trim(mine, slab), layout.trim(by_q, slab).to(dq.dtype))
        _give_back(dk, at, by_k)
        _give_back(dv, at, by_v)
    dv.index_add_(0, alone, grad.index_select(0, alone).to(dv.dtype))
    _through_norms(dk, k, inverse)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class _Rounds(SoftmaxFunction):
    kernel = "the kernel of hashed rounds"
    tensors = 7  # all but size, causal and scale
    forward = staticmethod(_forward)
    gradients = staticmethod(_gradients)


_rounds = make_softmax_op("rounds", _forward, _gradients, tensors=_Rounds.tensors)


def _recipe(order: Tensor, chunk: Tensor, lengths: Tensor | None, size: int, causal: bool, scale: float) -> Recipe:
    return Recipe(Rounds(order, chunk, size, lengths), causal, scale)


def _alone(lse: Tensor) -> Tensor:
    """The rows that see no key but themselves."""
    return (lse == float("-inf")).nonzero()[:, 0]


def _inner(q: Tensor, part: str, recipe: Recipe) -> torch.dtype:
    """The dtype that a pass computes in."""
    return fused_dtype(q, part, min(recipe.rounds.size, ROWS_A_TILE), 2 * recipe.rounds.size)


def _keys(
    layout: Layout, at: Tensor, k: Tensor, v: Tensor, inverse: Tensor, inner: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys of unit length and values, ``[A, T, 2m, D]``."""
    keys = gather(k, at).to(inner).mul_(gather(inverse, at)[..., None])
    return layout.windows(keys), layout.windows(gather(v, at).to(inner))


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`attend` with chunks as its batch: so what it returns for one row lies in order."""
    out, lse = attend(*(x.transpose(0, 1) for x in (q, k, v, mask)), scale=scale)
    return out.transpose(0, 1), lse.transpose(0, 1)


def _attend_backward(*tensors: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = attend_backward(*(x.transpose(0, 1) for x in tensors), scale=scale)
    return dq.transpose(0, 1), dk.transpose(0, 1), dv.transpose(0, 1)


def _put(first: bool, out: Tensor, lse: Tensor, at: Tensor, part: Tensor, part_lse: Tensor) -> None:
    if not first:
        so_far, sums = out.index_select(0, at), lse.index_select(0, at)
        join(so_far, sums, part, part_lse)
        part, part_lse = so_far, sums
    out.index_copy_(0, at, part.to(out.dtype))
    lse.index_copy_(0, at, part_lse.to(lse.dtype))


def _give_back(grad: Tensor, at: Tensor, part: Tensor) -> None:
    """Add the tiles' gradient ``part [A, T, 2m, D]`` to the keys that they were gathered from."""
    size = part.shape[2] // 2
    before, mine = part[:, :, :size], part[:, :, size:]
    mine[:, :-1] += before[:, 1:]  # a chunk was seen by itself and by the next
    for where, found in ((at[:, size:], mine), (at[:, :size], before[:, 0])):
        grad.index_add_(0, where.reshape(-1), found.reshape(-1, grad.shape[1]).to(grad.dtype))


def _through_norms(grad: Tensor, k: Tensor, inverse: Tensor) -> None:
    """From the gradient by unit vectors to that by k, in place: what lies across k, divided by its length."""
    for first in range(0, len(k), ROWS_A_SLAB):
        here, length = grad[first : first + ROWS_A_SLAB], inverse[first : first + ROWS_A_SLAB, None]
        unit = k[first : first + ROWS_A_SLAB] * length
        here.sub_(unit * (unit * here).sum(-1, keepdim=True)).mul_(length)
