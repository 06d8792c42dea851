"""One stretch of a causal scan: forward, and the gradients of its queries and of its keys.

The weights of pairs within a chunk are formed; what came before the chunk is read from a state of sums. If sums are
small, many chunks are processed together: their sums are one product, and those before each of them another, with a
small matrix. If sums are large, chunks are processed one by one, with the state in place. Shapes: features of queries
``x [Bh, G, L, F]`` and keys ``y [Bh, L, F]``, values ``[Bh, L, E]``, logarithms of keys' weights ``a [Bh, L]``.

Weights of keys in one chunk are relative to the running maximum of each row: a later reference would leak the future
into the past.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .scan_state import ChunkWeights, ScanState, weigh_past, weigh_sums
from .sums import dot_rows

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the sums more, the shorter

MAX_SUMS_ELEMENTS = 2**18  # numbers of the sums of chunks processed together: more would not stay in the cache
NOTHING = float("-inf")


def attend(x: Tensor, y: Tensor, v: Tensor, a: Tensor | None, state: ScanState, tops: Tensor) -> Tensor | None:
    """Write weighted sums of values into ``[Bh, G, L, E]``, and add the stretch to the state. Returns the sums of
    weights ``[Bh, G, L, 1]``, if something divides by them."""
    totals = x.new_empty(*x.shape[:3], 1) if state.divides else None
    for positions, count in _split_positions(x.shape[2], state):
        rows, ys, vs = (
            _fold_rows(x[:, :, positions], count),
            _fold(y[:, positions], count),
            _fold(v[:, positions], count),
        )
        weights = state.compute_weights(_slice_logs(a, positions), count)
        local_weights, past = _mask_causal(rows @ ys.mT, x.shape[1], weights), state.read(ys, vs, weights)
        tops[:, :, positions] = _unfold_rows(weigh_past(rows @ past.kv, weights).baddbmm_(local_weights, vs), x, count)
        if totals is not None and past.z is not None:
            total = weigh_past(dot_rows(rows, past.z), weights).add_(local_weights.sum(-1, keepdim=True))
            totals[:, :, positions] = _unfold_rows(total, x, count)
        state.advance(ys, vs, weights, past)
    return totals


def backward_queries(
    grad_top: Tensor, grad_total: Tensor | None, y: Tensor, v: Tensor, a: Tensor | None, state: ScanState
) -> tuple[Tensor, list[Tensor | None]]:
    """The gradient ``[Bh, G, L, F]`` of queries' features, and the references of the state, for `backward_keys`.

    by_top ``[Bh, G, L, E]`` and by_total ``[Bh, G, L, 1]`` are the gradients of the results.
    """
    grad_x, references = y.new_empty(*grad_top.shape[:3], y.shape[2]), []
    for positions, count in _split_positions(grad_top.shape[2], state):
        references.append(state.reference)
        grad_tops, grad_totals = (
            _fold_rows(grad_top[:, :, positions], count),
            _fold_totals(grad_total, positions, count),
        )
        ys, vs = _fold(y[:, positions], count), _fold(v[:, positions], count)
        weights = state.compute_weights(_slice_logs(a, positions), count)
        past = state.read(ys, vs, weights)
        chunk_grad = weigh_past(grad_tops, weights) @ past.kv.mT
        if grad_totals is not None and past.z is not None:
            chunk_grad.addcmul_(weigh_past(grad_totals, weights), past.z[:, None])
        chunk_grad.baddbmm_(_pair_gradients(grad_tops, grad_totals, vs, grad_top.shape[1], weights), ys)
        grad_x[:, :, positions] = _unfold_rows(chunk_grad, grad_top, count)
        state.advance(ys, vs, weights, past)
    return grad_x, references


def backward_keys(
    x: Tensor,
    y: Tensor,
    v: Tensor,
    a: Tensor | None,
    grad_top: Tensor,
    grad_total: Tensor | None,
    grad_state: ScanState,
    references: list[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """Gradients ``[Bh, L, F]`` by the features of keys and ``[Bh, L, E]`` by values, last chunk first.

    by_state: the gradient by the state after the stretch, which becomes that by the state before it.
    """
    grad_y, grad_v = torch.empty_like(y), torch.empty_like(v, memory_format=torch.contiguous_format)
    parts = list(_split_positions(x.shape[2], grad_state))
    for (positions, count), reference in zip(reversed(parts), reversed(references), strict=True):
        grad_state.reference = reference
        rows, ys, vs = (
            _fold_rows(x[:, :, positions], count),
            _fold(y[:, positions], count),
            _fold(v[:, positions], count),
        )
        grad_tops, grad_totals = (
            _fold_rows(grad_top[:, :, positions], count),
            _fold_totals(grad_total, positions, count),
        )
        weights = grad_state.compute_weights(_slice_logs(a, positions), count)
        past = grad_state.read_backward(rows, grad_tops, grad_totals, weights)
        chunk_grad_v = weigh_sums(ys @ past.kv, weights).baddbmm_(
            _mask_causal(rows @ ys.mT, x.shape[1], weights).mT, grad_tops
        )
        chunk_grad_y = _add_sums(weigh_sums(vs, weights) @ past.kv.mT, past.z, weights)
        chunk_grad_y.baddbmm_(_pair_gradients(grad_tops, grad_totals, vs, x.shape[1], weights).mT, rows)
        grad_v[:, positions], grad_y[:, positions] = (
            chunk_grad_v.view(len(v), -1, v.shape[2]),
            chunk_grad_y.view(len(y), -1, y.shape[2]),
        )
        grad_state.advance_backward(rows, grad_tops, grad_totals, weights, past)
    return grad_y, grad_v


def _pair_gradients(
    grad_tops: Tensor, grad_totals: Tensor | None, v: Tensor, group: int, weights: ChunkWeights | None
) -> Tensor:
    """Gradient ``[Bh C, G c, c]`` by the products of features in a chunk."""
    return _mask_causal(
        grad_tops @ v.mT if grad_totals is None else torch.baddbmm(grad_totals, grad_tops, v.mT), group, weights
    )


def _add_sums(x: Tensor, grad_z: Tensor | None, weights: ChunkWeights | None) -> Tensor:
    """Add to rows ``[Bh C, c, F]`` of keys' gradients those of the sums of keys ``[Bh C, F]``, in place."""
    if grad_z is None:
        return x
    if weights is None:
        return x.add_(grad_z[:, None])
    count = len(weights.keys)
    x.view(count, -1, *x.shape[1:]).addcmul_(grad_z.view(count, -1, 1, grad_z.shape[1]), weights.keys)
    return x


def _mask_causal(products: Tensor, group: int, weights: ChunkWeights | None) -> Tensor:
    """Products ``[Bh C, G c, c]`` of rows and keys of chunks, 0 for later keys, in place."""
    lanes = len(products) if weights is None else len(weights.pairs)
    square = products.view(lanes, -1, group, *2 * products.shape[2:])
    if weights is None:
        square.tril_()
    else:
        square.mul_(weights.pairs)
    return products


# -- chunks beside each other --------------------------------------------------------------------------------------


def _split_positions(length: int, state: ScanState) -> Iterator[tuple[slice, int]]:
    """Positions and their number of chunks: as many whole chunks together as suit the state, and the rest as one."""
    max_chunks, whole_chunks = max(MAX_SUMS_ELEMENTS // state.kv.numel(), 1), length // CHUNK
    for first in range(0, whole_chunks, max_chunks):
        last = min(first + max_chunks, whole_chunks)
        yield slice(first * CHUNK, last * CHUNK), last - first
    if whole_chunks * CHUNK < length:
        yield slice(whole_chunks * CHUNK, length), 1


def _fold(x: Tensor, count: int) -> Tensor:
    """``[Bh, L, .]`` to ``[Bh C, c, .]``."""
    return x.reshape(len(x) * count, -1, x.shape[2])


def _fold_rows(x: Tensor, count: int) -> Tensor:
    """``[Bh, G, L, .]`` to ``[Bh C, G c, .]``."""
    return x.unflatten(2, (count, -1)).transpose(1, 2).reshape(len(x) * count, -1, x.shape[3])


def _fold_totals(x: Tensor | None, positions: slice, count: int) -> Tensor | None:
    return None if x is None else _fold_rows(x[:, :, positions], count)


def _unfold_rows(x: Tensor, like: Tensor, count: int) -> Tensor:
    """``[Bh C, G c, .]`` to ``[Bh, G, L, .]`` of tensors like this one."""
    heads, group = like.shape[:2]
    return x.view(heads, count, group, -1, x.shape[2]).transpose(1, 2).flatten(2, 3)


def _slice_logs(a: Tensor | None, positions: slice) -> Tensor | None:
    return None if a is None else a[:, positions]
