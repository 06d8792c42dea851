"""One stretch of a causal scan, chunk by chunk: forwards, and the gradients by its queries and by its keys.

Within a chunk the weights of its pairs are formed; what came before is read from a state of sums. Shapes: features of
queries ``x [Bh, G, L, F]`` and keys ``y [Bh, L, F]``, values ``[Bh, L, E]``, logarithms of keys' weights ``a [Bh, L]``.

Where keys have weights, those of one chunk are relative to the running maximum *of each row*: a reference from further
on would let the future reach the past.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .sums import Sums, along

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the state more, the shorter


class _Weights(NamedTuple):
    """Weights of a chunk's keys: for its own queries, of the past for its queries, of its keys in the state after it,
    of the past in that state, and that state's reference."""

    pairs: Tensor  # [Bh, 1, c, c], 0 for later keys
    past: Tensor  # [Bh, 1, c, 1]
    keys: Tensor  # [Bh, c, 1]
    carry: Tensor  # [Bh, 1]
    reference: Tensor  # [Bh]


class State:
    """The sums over all chunks so far, or in the backward pass the gradient by them."""

    def __init__(self, sums: Sums, decays: bool) -> None:
        self.kv, self.z, self.reference = sums
        self.decays = decays

    def take(self, y: Tensor, v: Tensor, weights: _Weights | None) -> None:
        """Add a chunk's keys. Their weights go to the values, which are mostly narrower."""
        if weights is None:
            self.z += y.sum(1)
        else:
            self.carry(weights)
            self.z += (weights.keys.mT @ y)[:, 0]
            v, self.reference = v * weights.keys, weights.reference
        self.kv.baddbmm_(y.mT, v)

    def carry(self, weights: _Weights) -> None:
        """The past of a chunk as the next one weighs it."""
        self.kv.mul_(weights.carry[..., None])
        self.z.mul_(weights.carry)

    def weights(self, a: Tensor | None, here: slice) -> _Weights | None:
        if a is None or self.reference is None:
            return None
        return _weights(a[:, here], self.reference, self.decays, self.kv.dtype)


def attend(x: Tensor, y: Tensor, v: Tensor, a: Tensor | None, state: State) -> tuple[Tensor, Tensor]:
    """Weighted sums of values ``[Bh, G, L, E]`` and of weights ``[Bh, G, L, 1]``; the stretch is added to the state."""
    tops, totals = x.new_empty(*x.shape[:3], v.shape[2]), x.new_empty(*x.shape[:3], 1)
    for here in _chunks(x):
        xs, ys, vs, weights = x[:, :, here], y[:, here], v[:, here], state.weights(a, here)
        near, flat = _pairs(xs, ys, weights), xs.flatten(1, 2)
        top, total = _as_past(flat @ state.kv, weights), _as_past(along(flat, state.z), weights)
        top.baddbmm_(near, vs)
        total += near.sum(-1, keepdim=True)
        tops[:, :, here], totals[:, :, here] = (t.unflatten(1, (x.shape[1], -1)) for t in (top, total))
        state.take(ys, vs, weights)
    return tops, totals


def by_queries(
    by_top: Tensor, by_total: Tensor | None, y: Tensor, v: Tensor, a: Tensor | None, state: State
) -> tuple[Tensor, list[Tensor | None]]:
    """Gradient ``[Bh, G, L, F]`` by the features of queries, and the state's reference before each chunk.

    by_top ``[Bh, G, L, E]`` and by_total ``[Bh, G, L, 1]`` are the gradients by what `attend` returns.
    """
    by_x, references = y.new_empty(*by_top.shape[:3], y.shape[2]), []
    for here in _chunks(by_top):
        ys, vs, weights = y[:, here], v[:, here], state.weights(a, here)
        references.append(state.reference)
        tops, totals = (
            by_top[:, :, here].flatten(1, 2),
            None if by_total is None else by_total[:, :, here].flatten(1, 2),
        )
        found = _as_past(tops, weights) @ state.kv.mT
        if totals is not None:
            found.addcmul_(_as_past(totals, weights), state.z[:, None])
        found.baddbmm_(_by_pairs(tops, totals, vs, by_x.shape[1], weights), ys)
        by_x[:, :, here] = found.unflatten(1, (by_x.shape[1], -1))
        state.take(ys, vs, weights)
    return by_x, references


def by_keys(
    x: Tensor,
    y: Tensor,
    v: Tensor,
    a: Tensor | None,
    by_top: Tensor,
    by_total: Tensor | None,
    by_state: State,
    references: list[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """Gradients ``[Bh, L, F]`` by the features of keys and ``[Bh, L, E]`` by values, last chunk first.

    by_state: the gradient by the state after the stretch, which becomes that by the state before it.
    """
    by_y, by_v = torch.empty_like(y), torch.empty_like(v, memory_format=torch.contiguous_format)
    for here, reference in zip(reversed(_chunks(x)), reversed(references), strict=True):
        by_state.reference = reference
        xs, ys, vs, weights = x[:, :, here], y[:, here], v[:, here], by_state.weights(a, here)
        tops, totals = (
            by_top[:, :, here].flatten(1, 2),
            None if by_total is None else by_total[:, :, here].flatten(1, 2),
        )
        kept = 1 if weights is None else weights.keys
        by_v[:, here] = (ys @ by_state.kv).mul_(kept).baddbmm_(_pairs(xs, ys, weights).mT, tops)
        by_kept = ((vs * kept) @ by_state.kv.mT).add_(by_state.z[:, None] * kept)
        by_pairs = _by_pairs(tops, totals, vs, x.shape[1], weights)
        by_y[:, here] = by_kept.baddbmm_(by_pairs.mT, xs.flatten(1, 2))
        _give_back(by_state, xs.flatten(1, 2), tops, totals, weights)
    return by_y, by_v


def _give_back(by_state: State, x: Tensor, tops: Tensor, totals: Tensor | None, weights: _Weights | None) -> None:
    """From the gradient by the state after a chunk to that by the state before it."""
    if weights is not None:
        by_state.carry(weights)
    by_state.kv.baddbmm_(x.mT, _as_past(tops, weights))
    if totals is not None:
        by_state.z += (_as_past(totals, weights).mT @ x)[:, 0]


def _weights(a: Tensor, reference: Tensor, decays: bool, dtype: torch.dtype) -> _Weights:
    """Logarithms ``[Bh, c]`` of a chunk's keys to weights. Differences are taken in float64, near the reference."""
    base = reference.masked_fill(reference == float("-inf"), 0)
    near, past = (a - base[:, None]).to(dtype), (reference - base).to(dtype)[:, None]
    rows = near if decays else torch.maximum(near.cummax(1)[0], past)
    last = rows[:, -1:]
    rows, top = (x.masked_fill(x == float("-inf"), 0) for x in (rows, last))
    size = a.shape[1]
    later = torch.ones(size, size, dtype=torch.bool, device=a.device).triu_(1)
    pairs = (near[:, None] - rows[:, :, None]).masked_fill_(later, float("-inf")).exp_()
    return _Weights(
        pairs[:, None],
        (past - rows).exp_()[:, None, :, None],
        (near - top).exp_()[..., None],
        (past - top).exp_(),
        base + last[:, 0],
    )


def _as_past(x: Tensor, weights: _Weights | None) -> Tensor:
    """What rows ``[Bh, G c, .]`` of a chunk have to do with the past, as they weigh it."""
    if weights is None:
        return x
    return (x.unflatten(1, (-1, weights.past.shape[2])) * weights.past).flatten(1, 2)


def _pairs(x: Tensor, y: Tensor, weights: _Weights | None) -> Tensor:
    """Products ``[Bh, G c, c]`` of rows ``[Bh, G, c, F]`` and keys ``[Bh, c, F]`` of a chunk, 0 for later keys."""
    return _causal(x.flatten(1, 2) @ y.mT, x.shape[1], weights)


def _by_pairs(tops: Tensor, totals: Tensor | None, v: Tensor, group: int, weights: _Weights | None) -> Tensor:
    """Gradient ``[Bh, G c, c]`` by the products of features in a chunk."""
    found = tops @ v.mT if totals is None else torch.baddbmm(totals, tops, v.mT)
    return _causal(found, group, weights)


def _causal(products: Tensor, group: int, weights: _Weights | None) -> Tensor:
    square = products.view(len(products), group, -1, products.shape[2])
    if weights is None:
        square.tril_()
    else:
        square.mul_(weights.pairs)
    return products


def _chunks(x: Tensor) -> list[slice]:
    return [slice(i, min(i + CHUNK, x.shape[2])) for i in range(0, x.shape[2], CHUNK)]
