"""The state of a causal scan: sums of all chunks so far, how chunks weigh in it, and what each chunk reads of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .sums import Sums

NOTHING = float("-inf")


class Weights(NamedTuple):
    """Weights within C chunks of c positions, relative to each row's reference, and between chunks, to each chunk's."""

    pairs: Tensor  # [Bh C, 1, c, c], of a chunk's keys for its own queries, 0 for later keys
    past: Tensor  # [Bh C, 1, c, 1], of what came before the chunk for its queries
    keys: Tensor  # [Bh C, c, 1], of its keys in its own sums
    sums: Tensor  # [Bh, C + 1, C], of each chunk's sums before each chunk, and after the last
    carry: Tensor  # [Bh, C + 1, 1], of the state before all of them there
    reference: Tensor  # [Bh], of the state after the last


class State:
    """The sums over all chunks so far, or in the backward pass the gradient by them."""

    def __init__(self, sums: Sums, decays: bool) -> None:
        self.kv, self.z, self.reference = sums
        self.decays = decays

    def weights(self, a: Tensor | None, count: int) -> Weights | None:
        """The weights in so many chunks of equal length."""
        if a is None or self.reference is None:
            return None
        return weigh(a, self.reference, self.decays, self.kv.dtype, count)

    def look(self, y: Tensor, v: Tensor, weights: Weights | None) -> Past:
        """The sums before each chunk of keys ``[Bh C, c, F]`` and values ``[Bh C, c, E]``. `take` comes after."""
        heads, count = len(self.kv), len(y) // len(self.kv)
        if count == 1:
            return Past(self.kv, self.z)
        found = []
        over = _ones(y, heads, count) if weights is None else weights.sums
        for own, state in zip(_sum_keys(y, v, weights), (self.kv, self.z), strict=True):
            found.append(over @ own.view(heads, count, -1))
            flat = state.reshape(heads, 1, -1)
            found[-1].add_(flat) if weights is None else found[-1].addcmul_(flat, weights.carry)
        return _several(found, self)

    def take(self, y: Tensor, v: Tensor, weights: Weights | None, past: Past) -> None:
        """Add the chunks to the state."""
        if weights is not None:
            self.reference = weights.reference
        if past.after is not None:
            self.kv, self.z = past.after
        elif weights is None:
            self.z += y.sum(1)
            self.kv.baddbmm_(y.mT, v)
        else:
            self._carry(weights)
            self.z += (weights.keys.mT @ y)[:, 0]
            self.kv.baddbmm_(y.mT, v * weights.keys)  # weights go to the values, which are mostly narrower

    def look_back(self, x: Tensor, tops: Tensor, totals: Tensor | None, weights: Weights | None) -> Past:
        """The transpose of `look`: from rows ``[Bh C, G c, F]`` and the gradients by what they read, the gradients by
        the sums of each chunk. `give_back` comes after."""
        heads, count = len(self.kv), len(x) // len(self.kv)
        if count == 1:
            return Past(self.kv, self.z)
        if weights is None:
            over = torch.cat([x.new_ones(count + 1, count).tril_(-1), x.new_ones(count + 1, 1)], 1).expand(
                heads, -1, -1
            )
        else:
            over = torch.cat([weights.sums, weights.carry], 2)
        by_kv = x.mT @ as_past(tops, weights)
        by_z = self.z.new_zeros(len(x), self.z.shape[1]) if totals is None else _by_z(x, totals, weights)
        found = []
        for own, state in ((by_kv, self.kv), (by_z, self.z)):
            rows = torch.cat([own.view(heads, count, -1), state.reshape(heads, 1, -1)], 1)
            found.append(over.mT @ rows)
        return _several(found, self)

    def give_back(self, x: Tensor, tops: Tensor, totals: Tensor | None, weights: Weights | None, past: Past) -> None:
        """From the gradient by the state after chunks to that by the state before them."""
        if past.after is not None:
            self.kv, self.z = past.after
            return
        if weights is not None:
            self._carry(weights)
        self.kv.baddbmm_(x.mT, as_past(tops, weights))
        if totals is not None:
            self.z += _by_z(x, totals, weights)

    def _carry(self, weights: Weights) -> None:
        """The past of a chunk as the next one weighs it."""
        self.kv.mul_(weights.carry[:, -1:])
        self.z.mul_(weights.carry[:, -1])


class Past(NamedTuple):
    """Sums before each chunk, ``[Bh C, F, E]`` and ``[Bh C, F]``, and after the last, where that is known already."""

    kv: Tensor
    z: Tensor
    after: tuple[Tensor, Tensor] | None = None


def _several(found: list[Tensor], state: State) -> Past:
    """Of sums ``[Bh, C + 1, .]``, kv's and z's, those of chunks, and the last as the state's."""
    shapes = state.kv.shape, state.z.shape
    own = (x[:, :-1].reshape(-1, *shape[1:]) for x, shape in zip(found, shapes, strict=True))
    # copies, lest a state hold all chunks' sums
    after = tuple(x[:, -1].clone().view(shape) for x, shape in zip(found, shapes, strict=True))
    return Past(*own, after=(after[0], after[1]))


def _by_z(x: Tensor, totals: Tensor, weights: Weights | None) -> Tensor:
    return (as_past(totals, weights).mT @ x)[:, 0]


def _ones(like: Tensor, heads: int, count: int) -> Tensor:
    """Which chunks' sums are there before each chunk, and after the last, ``[Bh, C + 1, C]``: all weigh the same."""
    return like.new_ones(count + 1, count).tril_(-1).expand(heads, -1, -1)


def _sum_keys(y: Tensor, v: Tensor, weights: Weights | None) -> tuple[Tensor, Tensor]:
    """Each chunk's own sums. Its weights go to the values, which are mostly narrower."""
    if weights is None:
        return y.mT @ v, y.sum(1)
    return y.mT @ (v * weights.keys), (weights.keys.mT @ y)[:, 0]


def weigh(a: Tensor, reference: Tensor, decays: bool, dtype: torch.dtype, count: int) -> Weights:
    """Logarithms ``[Bh, L]`` of keys to weights. Differences are taken in float64, near each chunk's reference."""
    a = a.double()
    rows = a if decays else torch.maximum(a.cummax(1)[0], reference[:, None])
    a, rows = a.unflatten(1, (count, -1)), rows.unflatten(1, (count, -1))
    last = rows[..., -1]
    starts = torch.cat([reference[:, None], last], 1)  # before each chunk, and after the last
    base = _or_zero(starts)
    near, level = ((x - base[:, :-1, None]).to(dtype).flatten(0, 1) for x in (a, rows))
    begin = (starts - base)[:, :-1].to(dtype).flatten()[:, None]
    level, top = _or_zero(level), _or_zero(level[:, -1:])
    size = a.shape[2]
    later = torch.ones(size, size, dtype=torch.bool, device=a.device).triu_(1)
    pairs = (near[:, None] - level[:, :, None]).masked_fill_(later, NOTHING).exp_()
    before = torch.ones(count + 1, count, dtype=torch.bool, device=a.device).tril_(-1)
    return Weights(
        pairs[:, None],
        (begin - level).exp_()[:, None, :, None],
        (near - top).exp_()[..., None],
        (last[:, None] - base[..., None]).masked_fill_(~before, NOTHING).exp_().to(dtype),
        (reference[:, None] - base).exp_().to(dtype)[..., None],
        starts[:, -1].clone(),
    )


def _or_zero(x: Tensor) -> Tensor:
    return x.masked_fill(x == NOTHING, 0)


def as_past(x: Tensor, weights: Weights | None) -> Tensor:
    """What rows ``[Bh C, G c, .]`` of chunks have to do with the past, as they weigh it."""
    if weights is None:
        return x
    return (x.unflatten(1, (-1, weights.past.shape[2])) * weights.past).flatten(1, 2)
