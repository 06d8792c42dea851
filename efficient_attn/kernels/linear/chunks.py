"""One stretch of a causal scan: forward, and the gradients of its queries and of its keys.

    O = tril(X Y^T) V + X S,    S' = S + Y^T V                                         for each chunk, S before it
    P = tril(dO V^T + dz),    dX = P Y + dO S^T,    dY = P^T X + V dS'^T,    dV = tril(X Y^T)^T dO + Y dS'
    dS = dS' + X^T dO

in the letters of flash-linear-attention (arXiv:2312.06635), with X ``[Bh, G, L, F]`` and Y ``[Bh, L, F]`` for the
features of Q and K. Within a chunk the weights of pairs are formed; the past is read from S. If S is small, many chunks
are processed together: their sums are one product, and those before each of them another, with a small matrix. If it is
large, chunks are processed one by one, with S in place.

Where sums of weights divide, values have a further column of ones, and gradients that by these sums: on a GPU joined to
them, so that the same products give both, on a CPU apart. Weights of keys in a chunk are relative to each row's running
maximum: a later reference would leak the future.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..step_sizes import limit_elements
from .linear_config import OutputGrads, Stretch
from .scan_state import (
    ChunkWeights,
    Columns,
    ScanState,
    Values,
    add_product,
    joins_ones,
    weigh_past,
    weigh_sums,
)
from .sums import dot_rows

CHUNK = 64  # positions: the pairs within a chunk cost more, the longer it is, and the sums more, the shorter

MAX_SUMS_ELEMENTS = 2**18  # numbers of the sums of chunks processed together: more would not stay in the cache


class Part(NamedTuple):
    """C chunks of c positions that are computed together. reference: of the state before them."""

    positions: slice
    n_chunks: int
    y: Tensor  # [Bh C, c, F]
    values: Values  # [Bh C, c, E], see `Values`
    weights: ChunkWeights | None
    reference: Tensor | None
    before: Columns | None = None  # the sums before each chunk [Bh C, F, E]


def attend(x: Tensor, keys: Stretch, state: ScanState, tops: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Weighted sums of values ``[Bh, G, L, E]``, and of weights ``[Bh, G, L, 1]`` if something divides by them. Adds
    the stretch to the state. tops: where to write the former if nothing divides."""
    outputs: list[list[Tensor]] = []
    for part in _read_parts(keys, state):
        rows = _fold_rows(x[:, :, part.positions], part.n_chunks)
        pairs = _mask_causal(rows @ part.y.mT, x.shape[1], part.weights)
        columns = zip(part.values, part.before or [None] * len(part.values), strict=True)
        out = [_unfold_rows(_attend_columns(rows, pairs, v, b, part.weights), x, part.n_chunks) for v, b in columns]
        outputs.append(out if tops is None else [tops[:, :, part.positions].copy_(out[0])])
    if tops is not None:
        return tops, None
    out, *totals = (join_parts(parts, 2) for parts in zip(*outputs, strict=True))
    if totals:
        return out, totals[0]
    return (out[..., :-1], out[..., -1:]) if state.divides else (out, None)


def _attend_columns(
    rows: Tensor, pairs: Tensor, v: Tensor | None, before: Tensor | None, weights: ChunkWeights | None
) -> Tensor:
    """Weighted sums ``[Bh C, G c, E]`` of the values before and in each chunk; of weights if v is None."""
    if v is not None:
        return add_product(None if before is None else weigh_past(rows @ before, weights), pairs, v)
    total = pairs.sum(-1, keepdim=True)
    return total if before is None else total.add_(weigh_past(dot_rows(rows, before[..., 0]), weights))


def backward(
    x: Tensor, keys: Stretch, grads: OutputGrads, state: ScanState, grad_state: ScanState, *, to_start: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`backward_queries` and `backward_keys` of an only stretch, which have products in common. to_start: whether the
    gradient by the state before it is needed."""
    results = []
    for part in reversed(list(_read_parts(keys, state, to_end=False))):
        rows, tops = _fold_rows(x[:, :, part.positions], part.n_chunks), _fold_grads(grads, part)
        grad_pairs = _differentiate_pairs(tops, part, x.shape[1])
        grad_x = _unfold_rows(_query_gradient(part, tops, grad_pairs), x, part.n_chunks)
        has_earlier = to_start or part.positions.start > 0
        results.append((grad_x, *_go_back(part, rows, tops, grad_pairs, grad_state, has_earlier=has_earlier)))
    by_queries, by_keys, by_values = zip(*reversed(results), strict=True)
    return join_parts(by_queries, 2), join_parts(by_keys, 1), join_parts(by_values, 1)


def backward_queries(grads: OutputGrads, keys: Stretch, state: ScanState) -> tuple[Tensor, list[Tensor | None]]:
    """The gradient ``[Bh, G, L, F]`` of queries' features, and the references of the state, for `backward_keys`."""
    results, references, group = [], [], grads.top.shape[1]
    for part in _read_parts(keys, state):
        references.append(part.reference)
        tops = _fold_grads(grads, part)
        grad_pairs = _differentiate_pairs(tops, part, group)
        results.append(_unfold_rows(_query_gradient(part, tops, grad_pairs), grads.top, part.n_chunks))
    return join_parts(results, 2), references


def backward_keys(
    x: Tensor, keys: Stretch, grads: OutputGrads, grad_state: ScanState, references: list[Tensor | None]
) -> tuple[Tensor, Tensor]:
    """Gradients ``[Bh, L, F]`` by the features of keys and ``[Bh, L, E]`` by values, last chunk first. grad_state: the
    gradient by the state after the stretch, which becomes that by the state before it."""
    keys, results = _widen_values(keys, grad_state), []
    splits = list(_split_positions(keys, grad_state))
    for (positions, count), reference in zip(reversed(splits), reversed(references), strict=True):
        grad_state.reference = reference
        part = _fold_part(keys, positions, count, grad_state)
        rows, tops = _fold_rows(x[:, :, positions], count), _fold_grads(grads, part)
        results.append(_go_back(part, rows, tops, _differentiate_pairs(tops, part, x.shape[1]), grad_state))
    grad_y, grad_v = (join_parts(parts, 1) for parts in zip(*reversed(results), strict=True))
    return grad_y, grad_v


def _read_parts(keys: Stretch, state: ScanState, *, to_end: bool = True) -> Iterator[Part]:
    """The parts of a stretch, with the sums before them. to_end: whether the last one is added to the state."""
    keys = _widen_values(keys, state)
    for positions, count in _split_positions(keys, state):
        part = _fold_part(keys, positions, count, state)
        before, chunk_sums = state.read(part.y, part.values, count, part.weights)
        if before is not None and before is state.columns and not to_end:
            before = [x.clone() for x in before]  # parts are collected, and `advance` changes the state
        yield part._replace(before=before)
        if to_end or positions.stop < keys.y.shape[1]:
            state.advance(part.y, part.values, part.weights, chunk_sums)


def _fold_grads(grads: OutputGrads, part: Part) -> Columns:
    """Gradients ``[Bh C, G c, .]`` by the sums of each of a part's values."""
    tensors = grads if len(part.values) > 1 else (grads.join(),)
    if len(part.values) > 1 and grads.total is None:  # nothing depends on the sums of weights
        tensors = grads.top, grads.top.new_zeros(*grads.top.shape[:3], 1)
    return [_fold_rows(x[:, :, part.positions], part.n_chunks) for x in tensors if x is not None]


def _differentiate_pairs(tops: Columns, part: Part, group: int) -> Tensor:
    """Gradients ``[Bh C, G c, c]`` by the products of features."""
    top, *totals = tops
    v = part.values[0]
    assert v is not None
    grad_pairs = top @ v.mT
    for total in totals:
        grad_pairs.add_(total)
    return _mask_causal(grad_pairs, group, part.weights)


def _query_gradient(part: Part, tops: Columns, grad_pairs: Tensor) -> Tensor:
    """``[Bh C, G c, F]``, from the gradients by outputs and by products of pairs."""
    if part.before is None:
        return grad_pairs @ part.y
    past = weigh_past(tops[0], part.weights) @ part.before[0].mT
    for total, z in zip(tops[1:], part.before[1:], strict=True):
        past.addcmul_(weigh_past(total, part.weights), z.mT)
    return past.baddbmm_(grad_pairs, part.y)


def _go_back(
    part: Part, rows: Tensor, tops: Columns, grad_pairs: Tensor, grad_state: ScanState, *, has_earlier: bool = True
) -> tuple[Tensor, Tensor]:
    """Gradients ``[Bh, C c, .]`` by the features and values of a part's keys. has_earlier: whether the gradient by the
    state before the part is needed."""
    y, v, weights = part.y, part.values[0], part.weights
    assert v is not None
    after, chunk_grads = grad_state.read_backward(rows, tops, part.n_chunks, weights)
    pairs = _mask_causal(rows @ y.mT, rows.shape[1] // y.shape[1], weights)
    width = v.shape[2] - (grad_state.divides and joins_ones(v))
    by_sums = value_sums = None
    if after is not None:
        by_sums, value_sums = weigh_sums(v, weights) @ after[0].mT, weigh_sums(y @ after[0][..., :width], weights)
        for z in after[1:]:
            _add_sums(by_sums, z, weights)
    grad_y = add_product(by_sums, grad_pairs.mT, rows)
    grad_v = add_product(value_sums, pairs.mT, tops[0][..., :width])
    if has_earlier:
        grad_state.advance_backward(rows, tops, weights, chunk_grads)
    return tuple(g.view(len(y) // part.n_chunks, -1, g.shape[2]) for g in (grad_y, grad_v))  # pyright: ignore[reportReturnType]


def _add_sums(x: Tensor, grad_z: Tensor, weights: ChunkWeights | None) -> None:
    """Add to rows ``[Bh C, c, F]`` of keys' gradients those of the sums of keys ``[Bh C, F, 1]``, in place."""
    if weights is None:
        x.add_(grad_z.mT)
        return
    count = len(weights.keys)
    x.view(count, -1, *x.shape[1:]).addcmul_(grad_z.mT.reshape(count, -1, 1, grad_z.shape[1]), weights.keys)


def _widen_values(keys: Stretch, state: ScanState) -> Stretch:
    """Values in the dtype of features, with a column of ones where their sums divide and are not apart."""
    if not (state.divides and joins_ones(keys.y)):
        return keys._replace(v=keys.v.to(keys.y.dtype))
    *sizes, width = keys.v.shape
    v = keys.y.new_empty(*sizes, width + 1)
    v[..., :width] = keys.v
    v[..., width:].fill_(1)
    return keys._replace(v=v)


def _mask_causal(products: Tensor, group: int, weights: ChunkWeights | None) -> Tensor:
    """Products ``[Bh C, G c, c]`` of rows and keys of chunks, 0 for later keys, in place. Group: G."""
    lanes = len(products) if weights is None else len(weights.pairs)
    square = products.view(lanes, -1, group, *2 * products.shape[2:])
    if weights is None:
        square.tril_()
    else:
        square.mul_(weights.pairs)
    return products


def _split_positions(keys: Stretch, state: ScanState) -> Iterator[tuple[slice, int]]:
    """Positions and their number of chunks: as many whole chunks together as suit the state, and the rest as one."""
    heads, length, features = keys.y.shape
    n_sums = heads * features * keys.v.shape[2]
    max_chunks, whole_chunks = max(limit_elements(keys.y, MAX_SUMS_ELEMENTS) // n_sums, 1), length // CHUNK
    for first in range(0, whole_chunks, max_chunks):
        last = min(first + max_chunks, whole_chunks)
        yield slice(first * CHUNK, last * CHUNK), last - first
    if whole_chunks * CHUNK < length:
        yield slice(whole_chunks * CHUNK, length), 1


def _fold_part(keys: Stretch, positions: slice, count: int, state: ScanState) -> Part:
    y, v = (x[:, positions].reshape(len(x) * count, -1, x.shape[2]) for x in (keys.y, keys.v))
    a = None if keys.a is None else keys.a[:, positions]
    values = (v, None) if state.divides and not joins_ones(v) else (v,)
    return Part(positions, count, y, values, state.compute_weights(a, y, count), state.reference)


def _fold_rows(x: Tensor, count: int) -> Tensor:
    """``[Bh, G, L, .]`` to ``[Bh C, G c, .]``."""
    return x.unflatten(2, (count, -1)).transpose(1, 2).reshape(len(x) * count, -1, x.shape[3])


def join_parts(parts: list[Tensor] | tuple[Tensor, ...], dim: int) -> Tensor:
    """``torch.cat``, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _unfold_rows(x: Tensor, like: Tensor, count: int) -> Tensor:
    """``[Bh C, G c, .]`` to ``[Bh, G, L, .]`` of tensors like this one."""
    heads, group = like.shape[:2]
    return x.view(heads, count, group, -1, x.shape[2]).transpose(1, 2).flatten(2, 3)
