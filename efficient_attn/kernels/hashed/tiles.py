"""Softmax over the pairs that share a chunk, or neighbouring chunks, in any round: each pair once, never N x N.

A round's chunks are gathered a few at a time (a slab). A chunk of queries and the two chunks of keys that it sees make
a tile; its mask leaves out what earlier rounds have counted. Rounds are joined by their log-sum-exps, and the backward
pass recomputes the weights from the joined output and log-sum-exp, as in `parts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..dense import wide
from ..derivatives import KernelFunction, differentiate_once
from ..softmax.merge import attend, attend_backward, join
from ..traced import make_op, traced
from .lsh import Rounds

ROWS_A_SLAB = 1024  # queries a step; more costs memory and gains no speed
ROWS_A_TILE = 256  # queries a step where even one chunk is longer
FAR = 1 << 30  # a position after all others
INFINITE = {  # the integer as wide as a float, and the bits of minus infinity in it
    torch.float64: (torch.int64, -(1 << 52)),
    torch.float32: (torch.int32, -(1 << 23)),
    torch.bfloat16: (torch.int16, -(1 << 7)),
    torch.float16: (torch.int16, -(1 << 10)),
}


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a call needs besides q, k, v: who is in which chunk, causality, the scale of the scores."""

    rounds: Rounds
    causal: bool
    scale: float

    def tiles(self) -> Iterator[tuple[Layout, Slab]]:
        """All tiles, round by round, a slab at a time."""
        for r in range(len(self.rounds.order)):
            layout = lay_out(self.rounds, r, self.causal)
            for slab in layout.slabs():
                yield layout, slab


class Slab(NamedTuple):
    """Some tiles of a round: rows, chunks, and of each chunk the queries."""

    rows: slice
    chunks: slice
    queries: slice


@dataclass(frozen=True, eq=False)
class Layout:
    """Where a round's tiles are. R rows, C chunks of m slots; keys have a chunk of empty slots more, before the first.

    at: ``[R, (C + 1) m]``, the slots as indices into all rows in one, any index where a slot is empty. real: how many
    positions a row has. limit, position: ``[R, C, m]`` and ``[R, C, 2m]``, the last position that a query may see, and
    the keys' positions. before: for each earlier round, two numbers whose difference is 1 or -1 where it has the pair.
    """

    at: Tensor
    real: int
    limit: Tensor
    position: Tensor
    before: tuple[tuple[Tensor, Tensor], ...]
    causal: bool

    @property
    def first(self) -> bool:
        return not self.before

    @property
    def size(self) -> int:
        return self.limit.shape[2]

    def slabs(self) -> Iterator[Slab]:
        rows, chunks, size = self.limit.shape
        several = max(ROWS_A_SLAB // size, 1)
        whole = max(several // chunks, 1)  # rows a slab, where the chunks of one do not fill it
        step = size if several > 1 else ROWS_A_TILE
        for row in range(0, rows, whole):
            for chunk in range(0, chunks, several):
                for top in range(0, min(size, self.real - chunk * size), step):
                    last, end = min(chunk + several, chunks), min(row + whole, rows)
                    yield Slab(slice(row, end), slice(chunk, last), slice(top, min(top + step, size)))

    def keys(self, slab: Slab) -> Tensor:
        """``[A, S]``: where a slab's keys are, the chunk before its first included. A rows, S slots."""
        size = self.size
        return self.at[slab.rows, slab.chunks.start * size : (slab.chunks.stop + 1) * size]

    def queries(self, x: Tensor, slab: Slab) -> Tensor:
        """The queries' part ``[A, T, W, ..]`` of ``x [A, S, ..]``. T chunks, W queries of each."""
        return _queries(x, self.size)[:, :, slab.queries]

    def windows(self, x: Tensor) -> Tensor:
        """What each chunk sees of ``x [A, S, D]``: ``[A, T, 2m, D]``, overlapping views."""
        return _windows(x, self.size).mT

    def trim(self, x: Tensor, slab: Slab) -> Tensor:
        """``x [A, T, W, ..]`` without the slots after a row's end: ``[A * those, ..]``."""
        last = min((slab.chunks.stop - 1) * self.size + slab.queries.stop, self.real)
        return x.flatten(1, 2)[:, : last - slab.chunks.start * self.size - slab.queries.start].flatten(0, 1)

    def mask(self, slab: Slab, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The additive mask ``[A, T, W, 2m]``, and the queries ``[A, T, W]`` that see nothing in this round.

        In integers whose sign says no: comparisons give bytes, which cost ten times as much as this arithmetic.
        """
        no = self._apart(self.limit, self.position, slab)
        if self.before:
            least = self._apart(*self.before[0], slab).abs_()
            for pair in self.before[1:]:
                torch.minimum(least, self._apart(*pair, slab).abs_(), out=least)
            no |= least.sub_(2)
        if not self.causal:  # causal limits stop before the query itself
            no.diagonal(self.size + slab.queries.start, -2, -1).fill_(-1)
        no >>= 31
        blind = no.amax(-1) < 0
        kind, infinity = INFINITE[dtype]
        return no.to(kind).bitwise_and_(infinity).view(dtype), blind

    def _apart(self, queries: Tensor, keys: Tensor, slab: Slab) -> Tensor:
        return queries[(*slab, None)] - keys[slab.rows, slab.chunks, None]


def lay_out(rounds: Rounds, r: int, causal: bool) -> Layout:
    """The tiles of round r."""
    (_, rows, n), size, device = rounds.order.shape, rounds.size, rounds.order.device
    slots = torch.arange(-size, -(-n // size) * size, device=device)
    order = rounds.order[r].index_select(1, slots.clamp(0, n - 1))
    at = order + n * torch.arange(rows, device=device)[:, None]
    lengths = n if rounds.lengths is None else rounds.lengths[:, None]
    position = order.masked_fill_((slots < 0) | (slots >= lengths), FAR)
    mine = _queries(position, size)
    limit = mine - 1 if causal else torch.full_like(mine, FAR - 1)
    limit.masked_fill_(mine == FAR, -1)
    before = []
    for chunk in rounds.chunk[:r]:
        twice = 2 * chunk.view(-1).index_select(0, at.view(-1)).view(at.shape)
        before.append((_queries(twice, size) - 1, _windows(twice, size)))
    return Layout(at, n, limit, _windows(position, size), tuple(before), causal)


def _queries(x: Tensor, size: int) -> Tensor:
    """``[R, C, m, ..]``: every chunk of ``x [R, (C + 1) m, ..]`` but the empty one."""
    return x[:, size:].unflatten(1, (-1, size))


def _windows(x: Tensor, size: int) -> Tensor:
    """``[R, C, .., 2m]``: every chunk of ``x [R, (C + 1) m, ..]`` with the one before it, overlapping views."""
    return x.unfold(1, 2 * size, size)


def gather(x: Tensor, at: Tensor) -> Tensor:
    """Rows of ``x [R * N, ..]``."""
    return x.index_select(0, at.reshape(-1)).view(*at.shape, *x.shape[1:])


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


class _Rounds(KernelFunction):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, inverse: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        recipe = _recipe(*given)
        out = torch.empty_like(q, dtype=wide(q[:0]).dtype)
        lse = out.new_empty(len(out))
        for layout, slab in recipe.tiles():
            mask, blind = layout.mask(slab, q.dtype)
            at = layout.keys(slab)
            mine = layout.queries(at, slab)
            keys, values = _keys(layout, at, k, v, inverse)
            found, sums = _attend(gather(q, mine), keys, values, mask, recipe.scale)
            sums = sums.masked_fill(blind, float("-inf"))
            _put(layout.first, out, lse, *(layout.trim(x, slab) for x in (mine, found, sums)))
        alone = _alone(lse)
        return out.index_copy_(0, alone, v.index_select(0, alone).to(out.dtype)).to(q.dtype), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, size, causal, scale = inputs
        ctx.how = size, causal, scale
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = (grads[0], *ctx.saved_tensors, *ctx.how)
        return *differentiate_once("the kernel of hashed rounds", _gradients, *given), *[None] * 7

    @staticmethod
    def op_backward(ctx: Any, *grads: Tensor) -> Any:
        return *_rounds_backward(grads[0], *ctx.saved_tensors, *ctx.how), *[None] * 7


def _run(
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
    return _Rounds.forward(q, k, v, inverse, order, chunk, lengths, size, causal, scale)


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
    dq, dk, dv = (torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v))
    for layout, slab in recipe.tiles():
        mask, _ = layout.mask(slab, q.dtype)
        at = layout.keys(slab)
        mine = layout.queries(at, slab)
        g, rows, o, sums = (gather(x, mine) for x in (grad, q, out, lse))
        keys, values = _keys(layout, at, k, v, inverse)
        by_q, by_k, by_v = _attend_backward(g, rows, keys, values, o, sums, mask, scale=recipe.scale)
        dq.index_add_(0, layout.trim(mine, slab), layout.trim(by_q, slab).to(dq.dtype))
        _give_back(dk, at, by_k)
        _give_back(dv, at, by_v)
    dv.index_add_(0, alone, grad.index_select(0, alone).to(dv.dtype))
    _through_norms(dk, k, inverse)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


_rounds = make_op("rounds", _run, lambda q, *_: (torch.empty_like(q), wide(q.new_empty(len(q)))))
_rounds_backward = make_op("rounds_backward", _gradients, lambda _, *qkv: tuple(map(torch.empty_like, qkv[:3])))
_rounds.register_autograd(_Rounds.op_backward, setup_context=_Rounds.setup_context)


def _recipe(order: Tensor, chunk: Tensor, lengths: Tensor | None, size: int, causal: bool, scale: float) -> Recipe:
    return Recipe(Rounds(order, chunk, size, lengths), causal, scale)


def _alone(lse: Tensor) -> Tensor:
    """The rows that see no key but themselves."""
    return (lse == float("-inf")).nonzero()[:, 0]


def _keys(layout: Layout, at: Tensor, k: Tensor, v: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Keys of unit length and values, ``[A, T, 2m, D]``."""
    keys = gather(k, at).mul_(gather(inverse, at)[..., None])
    return layout.windows(keys), layout.windows(gather(v, at))


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
