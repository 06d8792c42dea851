"""One stretch of a causal scan: forwards, and the gradients by its queries and by its keys.

Within a chunk the weights of its pairs are formed; what came before it is read from a state of sums. Where sums are
small, many chunks go at once: their own sums are one product, and those before each of them another, with a small
matrix. Where sums are large, chunks go one by one, and the state stays where it is. Shapes: features of queries
``x [Bh, G, L, F]`` and keys ``y [Bh, L, F]``, values ``[Bh, L, E]``, logarithms of keys' weights ``a [Bh, L]``.

Where keys have weights, those of one chunk are relative to the running maximum *of each row*: a reference from further
on would let the future reach the past.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .state import State, Weights, as_past, as_sums
from .sums import along

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the sums more, the shorter

BESIDE = (
    2**18
)  # numbers of the sums of chunks that go at once: with more, they would be read from memory again and again
NOTHING = float("-inf")


def attend(x: Tensor, y: Tensor, v: Tensor, a: Tensor | None, state: State, tops: Tensor) -> Tensor | None:
    """Write weighted sums of values into ``[Bh, G, L, E]``, and add the stretch to the state. Returns the sums of
    weights ``[Bh, G, L, 1]``, if something divides by them."""
    totals = x.new_empty(*x.shape[:3], 1) if state.divides else None
    for here, count in _parts(x.shape[2], state):
        rows, ys, vs = _fold_rows(x[:, :, here], count), _fold(y[:, here], count), _fold(v[:, here], count)
        weights = state.weights(_cut(a, here), count)
        near, past = _causal(rows @ ys.mT, x.shape[1], weights), state.look(ys, vs, weights)
        tops[:, :, here] = _unfold_rows(as_past(rows @ past.kv, weights).baddbmm_(near, vs), x, count)
        if totals is not None and past.z is not None:
            total = as_past(along(rows, past.z), weights).add_(near.sum(-1, keepdim=True))
            totals[:, :, here] = _unfold_rows(total, x, count)
        state.take(ys, vs, weights, past)
    return totals


def by_queries(
    by_top: Tensor, by_total: Tensor | None, y: Tensor, v: Tensor, a: Tensor | None, state: State
) -> tuple[Tensor, list[Tensor | None]]:
    """Gradient ``[Bh, G, L, F]`` by the features of queries, and the state's references on the way, for `by_keys`.

    by_top ``[Bh, G, L, E]`` and by_total ``[Bh, G, L, 1]`` are the gradients by what `attend` returns.
    """
    by_x, references = y.new_empty(*by_top.shape[:3], y.shape[2]), []
    for here, count in _parts(by_top.shape[2], state):
        references.append(state.reference)
        tops, totals = _fold_rows(by_top[:, :, here], count), _fold_totals(by_total, here, count)
        ys, vs = _fold(y[:, here], count), _fold(v[:, here], count)
        weights = state.weights(_cut(a, here), count)
        past = state.look(ys, vs, weights)
        found = as_past(tops, weights) @ past.kv.mT
        if totals is not None and past.z is not None:
            found.addcmul_(as_past(totals, weights), past.z[:, None])
        found.baddbmm_(_by_pairs(tops, totals, vs, by_top.shape[1], weights), ys)
        by_x[:, :, here] = _unfold_rows(found, by_top, count)
        state.take(ys, vs, weights, past)
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
    parts = list(_parts(x.shape[2], by_state))
    for (here, count), reference in zip(reversed(parts), reversed(references), strict=True):
        by_state.reference = reference
        rows, ys, vs = _fold_rows(x[:, :, here], count), _fold(y[:, here], count), _fold(v[:, here], count)
        tops, totals = _fold_rows(by_top[:, :, here], count), _fold_totals(by_total, here, count)
        weights = by_state.weights(_cut(a, here), count)
        past = by_state.look_back(rows, tops, totals, weights)
        found_v = as_sums(ys @ past.kv, weights).baddbmm_(_causal(rows @ ys.mT, x.shape[1], weights).mT, tops)
        found_y = _add_sums(as_sums(vs, weights) @ past.kv.mT, past.z, weights)
        found_y.baddbmm_(_by_pairs(tops, totals, vs, x.shape[1], weights).mT, rows)
        by_v[:, here], by_y[:, here] = found_v.view(len(v), -1, v.shape[2]), found_y.view(len(y), -1, y.shape[2])
        by_state.give_back(rows, tops, totals, weights, past)
    return by_y, by_v


def _by_pairs(tops: Tensor, totals: Tensor | None, v: Tensor, group: int, weights: Weights | None) -> Tensor:
    """Gradient ``[Bh C, G c, c]`` by the products of features in a chunk."""
    return _causal(tops @ v.mT if totals is None else torch.baddbmm(totals, tops, v.mT), group, weights)


def _add_sums(x: Tensor, by_z: Tensor | None, weights: Weights | None) -> Tensor:
    """Rows ``[Bh C, c, F]`` of keys' gradients and those by the sums of keys ``[Bh C, F]``, in place."""
    if by_z is None:
        return x
    if weights is None:
        return x.add_(by_z[:, None])
    count = len(weights.keys)
    x.view(count, -1, *x.shape[1:]).addcmul_(by_z.view(count, -1, 1, by_z.shape[1]), weights.keys)
    return x


def _causal(products: Tensor, group: int, weights: Weights | None) -> Tensor:
    """Products ``[Bh C, G c, c]`` of rows and keys of chunks, 0 for later keys, in place."""
    lanes = len(products) if weights is None else len(weights.pairs)
    square = products.view(lanes, -1, group, *2 * products.shape[2:])
    if weights is None:
        square.tril_()
    else:
        square.mul_(weights.pairs)
    return products


# -- chunks beside each other --------------------------------------------------------------------------------------


def _parts(length: int, state: State) -> Iterator[tuple[slice, int]]:
    """Positions and their number of chunks: as many whole chunks at once as suit the state, and what is left as one."""
    most, whole = max(BESIDE // state.kv.numel(), 1), length // CHUNK
    for first in range(0, whole, most):
        last = min(first + most, whole)
        yield slice(first * CHUNK, last * CHUNK), last - first
    if whole * CHUNK < length:
        yield slice(whole * CHUNK, length), 1


def _fold(x: Tensor, count: int) -> Tensor:
    """``[Bh, L, .]`` to ``[Bh C, c, .]``."""
    return x.reshape(len(x) * count, -1, x.shape[2])


def _fold_rows(x: Tensor, count: int) -> Tensor:
    """``[Bh, G, L, .]`` to ``[Bh C, G c, .]``."""
    return x.unflatten(2, (count, -1)).transpose(1, 2).reshape(len(x) * count, -1, x.shape[3])


def _fold_totals(x: Tensor | None, here: slice, count: int) -> Tensor | None:
    return None if x is None else _fold_rows(x[:, :, here], count)


def _unfold_rows(x: Tensor, like: Tensor, count: int) -> Tensor:
    """``[Bh C, G c, .]`` to ``[Bh, G, L, .]`` of tensors like this one."""
    heads, group = like.shape[:2]
    return x.view(heads, count, group, -1, x.shape[2]).transpose(1, 2).flatten(2, 3)


def _cut(a: Tensor | None, here: slice) -> Tensor | None:
    return None if a is None else a[:, here]
