"""One stretch of a causal scan: forward, and the gradients of its queries and of its keys.

    O = tril(X Y^T) V + X S,    S' = S + Y^T V                                         for each chunk, S before it
    P = tril(dO V^T + dz),    dX = P Y + dO S^T,    dY = P^T X + V dS'^T,    dV = tril(X Y^T)^T dO + Y dS'
    dS = dS' + X^T dO

in the letters of flash-linear-attention (arXiv:2312.06635), with X ``[Bh, G, L, F]`` and Y ``[Bh, L, F]`` for the
features of Q and K. Within a chunk the weights of pairs are formed; the past is read from S. If S is small, many chunks
are processed together: their sums are one product, and those before each of them another, with a small matrix. If it is
large, chunks are processed one by one, with S in place.

Weights of keys in a chunk are relative to each row's running maximum: a later reference would leak the future.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..step_sizes import limit_elements
from .linear_config import OutputGrads, Stretch
from .scan_state import ChunkWeights, ScanState, weigh_past, weigh_sums
from .sums import dot_rows, pair_gradients

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the sums more, the shorter

MAX_SUMS_ELEMENTS = 2**18  # numbers of the sums of chunks processed together: more would not stay in the cache


def attend(x: Tensor, keys: Stretch, state: ScanState, tops: Tensor) -> Tensor | None:
    """Write weighted sums of values into ``tops [Bh, G, L, E]``, and add the stretch to the state. Returns the sums of
    weights ``[Bh, G, L, 1]``, if something divides by them."""
    totals = x.new_empty(*x.shape[:3], 1) if state.divides else None
    for positions, count in _split_positions(x.shape[2], state):
        rows, (ys, vs, a) = _fold_rows(x[:, :, positions], count), _fold_stretch(keys.rows(positions), count)
        weights = state.compute_weights(a, count)
        local_weights, past = _mask_causal(rows @ ys.mT, x.shape[1], weights), state.read(ys, vs, weights)
        tops[:, :, positions] = _unfold_rows(weigh_past(rows @ past.kv, weights).baddbmm_(local_weights, vs), x, count)
        if totals is not None and past.z is not None:
            total = weigh_past(dot_rows(rows, past.z), weights).add_(local_weights.sum(-1, keepdim=True))
            totals[:, :, positions] = _unfold_rows(total, x, count)
        state.advance(ys, vs, weights, past)
    return totals


def backward_queries(grads: OutputGrads, keys: Stretch, state: ScanState) -> tuple[Tensor, list[Tensor | None]]:
    """The gradient ``[Bh, G, L, F]`` of queries' features, and the references of the state, for `backward_keys`."""
    group, length = grads.top.shape[1:3]
    grad_x, references = keys.y.new_empty(*grads.top.shape[:3], keys.y.shape[2]), []
    for positions, count in _split_positions(length, state):
        references.append(state.reference)
        chunk_grads, (ys, vs, a) = _fold_grads(grads.rows(positions), count), _fold_stretch(keys.rows(positions), count)
        weights = state.compute_weights(a, count)
        past = state.read(ys, vs, weights)
        chunk_grad = weigh_past(chunk_grads.top, weights) @ past.kv.mT
        if chunk_grads.total is not None and past.z is not None:
            chunk_grad.addcmul_(weigh_past(chunk_grads.total, weights), past.z[:, None])
        chunk_grad.baddbmm_(_pair_gradients(chunk_grads, vs, group, weights), ys)
        grad_x[:, :, positions] = _unfold_rows(chunk_grad, grads.top, count)
        state.advance(ys, vs, weights, past)
    return grad_x, references


def backward_keys(
    x: Tensor, keys: Stretch, grads: OutputGrads, grad_state: ScanState, references: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Gradients ``[Bh, L, F]`` by the features of keys and ``[Bh, L, E]`` by values, last chunk first. grad_state: the
    gradient by the state after the stretch, which becomes that by the state before it."""
    grad_y, grad_v = torch.empty_like(keys.y), torch.empty_like(keys.v, memory_format=torch.contiguous_format)
    parts = list(_split_positions(x.shape[2], grad_state))
    for (positions, count), reference in zip(reversed(parts), reversed(references), strict=True):
        grad_state.reference = reference
        rows, (ys, vs, a) = _fold_rows(x[:, :, positions], count), _fold_stretch(keys.rows(positions), count)
        chunk_grads = _fold_grads(grads.rows(positions), count)
        weights = grad_state.compute_weights(a, count)
        past = grad_state.read_backward(rows, *chunk_grads, weights)
        local_weights = _mask_causal(rows @ ys.mT, x.shape[1], weights)
        chunk_grad_v = weigh_sums(ys @ past.kv, weights).baddbmm_(local_weights.mT, chunk_grads.top)
        chunk_grad_y = _add_sums(weigh_sums(vs, weights) @ past.kv.mT, past.z, weights)
        chunk_grad_y.baddbmm_(_pair_gradients(chunk_grads, vs, x.shape[1], weights).mT, rows)
        grad_v[:, positions] = chunk_grad_v.view(len(grad_v), -1, grad_v.shape[2])
        grad_y[:, positions] = chunk_grad_y.view(len(grad_y), -1, grad_y.shape[2])
        grad_state.advance_backward(rows, *chunk_grads, weights, past)
    return grad_y, grad_v


def _pair_gradients(grads: OutputGrads, v: Tensor, group: int, weights: ChunkWeights | None) -> Tensor:
    """Gradient ``[Bh C, G c, c]`` by the products of features in a chunk."""
    return _mask_causal(pair_gradients(*grads, v), group, weights)


def _add_sums(x: Tensor, grad_z: Tensor | None, weights: ChunkWeights | None) -> Tensor:
    """Add to rows ``[Bh C, c, F]`` of keys' gradients those of the sums of keys ``[Bh C, F]``, in place."""
    if grad_z is not None and weights is None:
        x.add_(grad_z[:, None])
    elif grad_z is not None and weights is not None:
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


def _split_positions(length: int, state: ScanState) -> Iterator[tuple[slice, int]]:
    """Positions and their number of chunks: as many whole chunks together as suit the state, and the rest as one."""
    max_chunks, whole_chunks = max(limit_elements(state.kv, MAX_SUMS_ELEMENTS) // state.kv.numel(), 1), length // CHUNK
    for first in range(0, whole_chunks, max_chunks):
        last = min(first + max_chunks, whole_chunks)
        yield slice(first * CHUNK, last * CHUNK), last - first
    if whole_chunks * CHUNK < length:
        yield slice(whole_chunks * CHUNK, length), 1


def _fold_stretch(keys: Stretch, count: int) -> Stretch:
    """``[Bh, L, .]`` to ``[Bh C, c, .]``; logarithms stay."""
    y, v = (x.reshape(len(x) * count, -1, x.shape[2]) for x in (keys.y, keys.v))
    return Stretch(y, v, keys.a)


def _fold_rows(x: Tensor, count: int) -> Tensor:
    """``[Bh, G, L, .]`` to ``[Bh C, G c, .]``."""
    return x.unflatten(2, (count, -1)).transpose(1, 2).reshape(len(x) * count, -1, x.shape[3])


def _fold_grads(grads: OutputGrads, count: int) -> OutputGrads:
    return OutputGrads(*(None if x is None else _fold_rows(x, count) for x in grads))  # pyright: ignore[reportArgumentType]


def _unfold_rows(x: Tensor, like: Tensor, count: int) -> Tensor:
    """``[Bh C, G c, .]`` to ``[Bh, G, L, .]`` of tensors like this one."""
    heads, group = like.shape[:2]
    return x.view(heads, count, group, -1, x.shape[2]).transpose(1, 2).flatten(2, 3)
