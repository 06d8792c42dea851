"""Softmax over rounds of sorted chunks, with an exact gradient: the kernel of hashed attention, eager and as an op.

    P_i = union over rounds r of the keys in the chunk of i in round r, and in the chunk before it  (Reformer,
    arXiv:2001.04451),    w_i = softmax over P_i of scale q_i . k_j / |k_j|,    out_i = sum_j w_ij v_j

A pair is computed in the first round that has it, and rounds are merged by their log-sum-exps.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..dense import widen
from ..half_precision import fused_dtype
from ..softmax.merge import FusedInputs, FusedOptions, attend, attend_backward, join
from ..softmax.softmax_kernel import SavedSoftmax, SoftmaxKernel, cut_range
from ..step_sizes import limit_rows
from .chunk_tiles import ROWS_A_SLAB, ROWS_A_TILE, Layout, Slab, cut_tiles, gather_rows, key_windows
from .lsh import Rounds

NEG_INF = float("-inf")


class HashedOptions(NamedTuple):
    """size: positions of a chunk."""

    size: int
    causal: bool
    scale: float


class HashedInputs(NamedTuple):
    """``q, k, v [R N, D]``, ``inverse [R N]``, the reciprocal lengths of k, and the tensors of `Rounds`."""

    q: Tensor
    k: Tensor
    v: Tensor
    inverse: Tensor
    order: Tensor
    chunk: Tensor
    lengths: Tensor | None

    def tiles(self, options: HashedOptions) -> Iterator[tuple[Layout, Slab]]:
        """The tiles of a call."""
        return cut_tiles(Rounds(self.order, self.chunk, options.size, self.lengths), options.causal)


def softmax_over_rounds(q: Tensor, k: Tensor, v: Tensor, rounds: Rounds, causal: bool, scale: float) -> Tensor:
    """Attention of ``q [R, N, D]`` over the unit vectors of ``k [R, N, D]`` and ``v [R, N, D]``. A query sees itself
    only if it sees nothing else; padded positions, whose v is zero, get zeros."""
    rows, keys, values = (x.flatten(0, 1) for x in (q, k, v))
    inverse = inverse_norms(k.detach()).flatten()
    inputs = HashedInputs(rows, keys, values, inverse, rounds.order, rounds.chunk, rounds.lengths)
    return ROUNDS(inputs, HashedOptions(rounds.size, causal, scale)).view(q.shape)


def inverse_norms(k: Tensor) -> Tensor:
    """1 / |k|, in float32 or wider, and 0 for vectors of no length: they become zeros, without a gradient."""
    norm = torch.linalg.vector_norm(widen(k), dim=-1)
    smallest = torch.finfo(norm.dtype).tiny
    return torch.where(norm < smallest, 0, 1 / norm.clamp(min=smallest))


def _forward(inputs: HashedInputs, options: HashedOptions) -> tuple[Tensor, Tensor]:
    q, _, v, *_ = inputs
    compute_dtype = _choose_compute_dtype(q, "forward", options.size)
    out = torch.empty_like(q, dtype=widen(q[:0]).dtype)
    lse = out.new_empty(len(out))
    for layout, slab in inputs.tiles(options):
        mask, empty_rows = layout.mask(slab, compute_dtype)
        key_indices = layout.keys(slab)
        query_indices = layout.queries(key_indices, slab)
        keys, values = _gather_keys(layout, key_indices, inputs, compute_dtype)
        rows = gather_rows(q, query_indices).to(compute_dtype)
        part_out, part_lse = _attend(FusedInputs(rows, keys, values, mask), options.scale)
        part_lse = part_lse.masked_fill(empty_rows, NEG_INF)
        parts = (layout.trim(x, slab) for x in (query_indices, part_out, part_lse))
        _merge_part(not layout.earlier_chunks, out, lse, *parts)
    if lse.device.type != "cpu":  # which is not asked how many there are
        return torch.where((lse == NEG_INF)[:, None], v, out).to(q.dtype), lse
    self_only = (lse == NEG_INF).nonzero()[:, 0]
    return out.index_copy_(0, self_only, v.index_select(0, self_only).to(out.dtype)).to(q.dtype), lse


def _gradients(grad: Tensor, saved: SavedSoftmax[HashedInputs], options: HashedOptions) -> tuple[Tensor, ...]:
    inputs, out, lse = saved
    q, k, v, inverse, *_ = inputs
    alone, grad = lse == NEG_INF, grad.contiguous()
    lse = lse.masked_fill(alone, 0)  # exp(-inf - 0) is 0, as required
    compute_dtype = _choose_compute_dtype(q, "backward", options.size)
    grad_q, grad_k, grad_v = (torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v))
    for layout, slab in inputs.tiles(options):
        mask, _ = layout.mask(slab, compute_dtype)
        key_indices = layout.keys(slab)
        query_indices = layout.queries(key_indices, slab)
        part_grad, rows, part_out = (gather_rows(x, query_indices).to(compute_dtype) for x in (grad, q, out))
        keys, values = _gather_keys(layout, key_indices, inputs, compute_dtype)
        part = SavedSoftmax(FusedInputs(rows, keys, values, mask), part_out, gather_rows(lse, query_indices))
        part_grad_q, part_grad_k, part_grad_v = _attend_backward(part_grad, part, options.scale)
        grad_q.index_add_(0, layout.trim(query_indices, slab), layout.trim(part_grad_q, slab).to(grad_q.dtype))
        _scatter_add(grad_k, key_indices, part_grad_k)
        _scatter_add(grad_v, key_indices, part_grad_v)
    if lse.device.type == "cpu":
        self_only = alone.nonzero()[:, 0]
        grad_v.index_add_(0, self_only, grad.index_select(0, self_only).to(grad_v.dtype))
    else:
        grad_v.add_(grad.masked_fill(~alone[:, None], 0))
    _normalization_backward(grad_k, k, inverse)
    return grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)


def _choose_compute_dtype(q: Tensor, operation: str, size: int) -> torch.dtype:
    return fused_dtype(q, operation, min(size, ROWS_A_TILE), 2 * size)


def _gather_keys(
    layout: Layout, indices: Tensor, inputs: HashedInputs, compute_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys of unit length and values, ``[A, T, 2m, D]``."""
    keys = gather_rows(inputs.k, indices).to(compute_dtype).mul_(gather_rows(inputs.inverse, indices)[..., None])
    values = gather_rows(inputs.v, indices).to(compute_dtype)
    return key_windows(keys, layout.size).mT, key_windows(values, layout.size).mT


def _attend(inputs: FusedInputs, scale: float) -> tuple[Tensor, Tensor]:
    """`attend` with chunks as its batch, so that its results for one row are contiguous."""
    out, lse = attend(_transpose(inputs), FusedOptions(causal=False, scale=scale))
    return out.transpose(0, 1), lse.transpose(0, 1)


def _attend_backward(grad: Tensor, saved: SavedSoftmax[FusedInputs], scale: float) -> tuple[Tensor, ...]:
    by_chunk = SavedSoftmax(_transpose(saved.inputs), saved.out.transpose(0, 1), saved.lse.transpose(0, 1))
    options = FusedOptions(causal=False, scale=scale)
    grad_q, grad_k, grad_v = attend_backward(grad.transpose(0, 1), by_chunk, options)
    return grad_q.transpose(0, 1), grad_k.transpose(0, 1), grad_v.transpose(0, 1)


def _transpose(inputs: FusedInputs) -> FusedInputs:
    q, k, v, mask = inputs
    mask = None if mask is None else mask.transpose(0, 1)
    return FusedInputs(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), mask)


def _merge_part(is_first: bool, out: Tensor, lse: Tensor, indices: Tensor, part_out: Tensor, part_lse: Tensor) -> None:
    if not is_first:
        joined, joined_lse = out.index_select(0, indices), lse.index_select(0, indices)
        join(joined, joined_lse, part_out, part_lse)
        part_out, part_lse = joined, joined_lse
    out.index_copy_(0, indices, part_out.to(out.dtype))
    lse.index_copy_(0, indices, part_lse.to(lse.dtype))


def _scatter_add(grad: Tensor, indices: Tensor, part_grad: Tensor) -> None:
    """Add the tiles' gradient ``part [A, T, 2m, D]`` to the keys that they were gathered from."""
    size = part_grad.shape[2] // 2
    previous_chunk, own_chunk = part_grad[:, :, :size], part_grad[:, :, size:]
    own_chunk[:, :-1] += previous_chunk[:, 1:]  # a chunk was seen by itself and by the next
    for target_indices, target_grad in ((indices[:, size:], own_chunk), (indices[:, :size], previous_chunk[:, 0])):
        grad.index_add_(0, target_indices.reshape(-1), target_grad.reshape(-1, grad.shape[1]).to(grad.dtype))


def _normalization_backward(grad: Tensor, k: Tensor, inverse: Tensor) -> None:
    """From the gradient of unit vectors to that of k, in place: the part orthogonal to k, divided by its length."""
    for slab in cut_range(len(k), limit_rows(k.device, ROWS_A_SLAB)):
        slab_grad, slab_inverse = grad[slab], inverse[slab, None]
        unit_rows = k[slab] * slab_inverse
        slab_grad.sub_(unit_rows * (unit_rows * slab_grad).sum(-1, keepdim=True)).mul_(slab_inverse)


ROUNDS = SoftmaxKernel("the kernel of hashed rounds", HashedInputs, HashedOptions, _forward, _gradients, op="rounds")
