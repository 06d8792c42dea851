"""Causal softmax of each query over its own block of keys and a list of earlier ones, without an N x M array.

A query's own block is one call of torch's fused kernel for all heads. Of each other block all queries whose lists name
it are gathered, attend to it together, and are merged by their log-sum-exps (MoBA, arXiv:2502.13189, section 2.3). The
backward pass does the same with the log-sum-exps of whole rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from . import fused, merge
from .merge import FusedInputs, FusedOptions
from .softmax_kernel import SavedSoftmax, SoftmaxKernel


class BlockInputs(NamedTuple):
    """``q [P, G, N, D]``, ``k, v [P, M, D]`` of P key-value heads of all rows of the batch, the blocks of each query
    besides its own ``[P, G, N, count]``, -1 for none, and the valid keys, bool ``[P, M]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    blocks: Tensor
    valid: Tensor | None


class BlockOptions(NamedTuple):
    """scale: of the scores. size: of a block. start: the position of the first query."""

    scale: float
    size: int
    start: int


class _Part(NamedTuple):
    """Rows of one head, of all its groups, whose lists name a block, and its keys."""

    head: int
    rows: Tensor
    keys: slice


def _own_parts(inputs: BlockInputs, options: BlockOptions) -> Iterator[tuple[slice, slice, FusedInputs, bool]]:
    """For each block with queries in it: these queries, its keys, the kernel's inputs, and whether they are causal."""
    q, k, v, _, valid = inputs
    (n, m), size, start = (q.shape[2], k.shape[1]), options.size, options.start
    for block in range(max(start, 0) // size, -(-min(start + n, m) // size)):
        rows = slice(max(block * size - start, 0), min((block + 1) * size - start, n))
        keys = slice(block * size, min((block + 1) * size, m))
        offset = start + rows.start - keys.start  # of the first row from the first key
        if offset == 0 and valid is None:
            mask = None
        else:
            i = torch.arange(rows.stop - rows.start, device=q.device) + offset
            allowed = (torch.arange(keys.stop - keys.start, device=q.device) <= i[:, None])[None, None]
            allowed = allowed if valid is None else allowed & valid[:, None, None, keys]
            mask = fused.additive_mask(allowed, q.dtype)
        yield rows, keys, FusedInputs(q[:, :, rows], k[:, None, keys], v[:, None, keys], mask), mask is None


def _listed_parts(inputs: BlockInputs, options: BlockOptions) -> Iterator[_Part]:
    blocks, size, m = inputs.blocks, options.size, inputs.k.shape[1]
    count = blocks.shape[3]
    if not count:
        return
    order = blocks.flatten(1).sort(dim=1, stable=True)
    for head, (numbers, places) in enumerate(zip(*order, strict=True)):
        found, lengths = numbers.unique_consecutive(return_counts=True)
        for number, rows in zip(
            found.tolist(), places.div(count, rounding_mode="floor").split(lengths.tolist()), strict=True
        ):
            if number >= 0:
                yield _Part(head, rows, slice(number * size, min((number + 1) * size, m)))


def _select(inputs: BlockInputs, part: _Part) -> FusedInputs:
    """The kernel's inputs, of one head."""
    q, k, v, _, valid = inputs
    mask = None if valid is None else fused.additive_mask(valid[part.head, part.keys], q.dtype)
    rows = q[part.head].flatten(0, 1)[part.rows]
    keys, values = k[part.head, part.keys], v[part.head, part.keys]
    return FusedInputs(
        rows[None, None], keys[None, None], values[None, None], None if mask is None else mask[None, None, None]
    )


def _forward(inputs: BlockInputs, options: BlockOptions) -> tuple[Tensor, Tensor]:
    q = inputs.q
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:3], float("-inf"))
    for rows, _, part, causal in _own_parts(inputs, options):
        part_out, part_lse = fused.attend_with_lse(part, FusedOptions(causal, options.scale))
        if part.mask is not None:  # the kernel's results without keys are undefined
            hidden = part.mask.amax(-1) == float("-inf")
            part_out, part_lse = part_out.masked_fill(hidden[..., None], 0), part_lse.masked_fill(hidden, float("-inf"))
        out[:, :, rows], lse[:, :, rows] = part_out, part_lse
    flat_out, flat_lse = out.flatten(1, 2), lse.flatten(1, 2)
    for part in _listed_parts(inputs, options):
        part_out, part_lse = merge.attend(_select(inputs, part), FusedOptions(False, options.scale))
        row_out, row_lse = flat_out[part.head, part.rows], flat_lse[part.head, part.rows]
        merge.join(row_out, row_lse, part_out[0, 0], part_lse[0, 0])
        flat_out[part.head, part.rows], flat_lse[part.head, part.rows] = row_out, row_lse
    return out, lse.masked_fill_(lse.isinf(), 0)


def _gradients(grad: Tensor, saved: SavedSoftmax[BlockInputs], options: BlockOptions) -> tuple[Tensor, ...]:
    inputs, out, lse = saved
    grads = grad_q, grad_k, grad_v = tuple(torch.zeros_like(x) for x in inputs[:3])
    for rows, keys, part, causal in _own_parts(inputs, options):
        saved_part = SavedSoftmax(part, out[:, :, rows], lse[:, :, rows])
        part_grads = fused.gradients_with_lse(grad[:, :, rows], saved_part, FusedOptions(causal, options.scale))
        grad_q[:, :, rows] = part_grads[0]
        grad_k[:, keys] += part_grads[1][:, 0]
        grad_v[:, keys] += part_grads[2][:, 0]
    flat_grad, flat_out, flat_lse, flat_grad_q = (x.flatten(1, 2) for x in (grad, out, lse, grad_q))
    for part in _listed_parts(inputs, options):
        head, rows, keys = part
        saved_part = SavedSoftmax(
            _select(inputs, part), flat_out[head, rows][None, None], flat_lse[head, rows][None, None]
        )
        part_grad = flat_grad[head, rows][None, None]
        part_grads = merge.attend_backward(part_grad, saved_part, FusedOptions(False, options.scale))
        flat_grad_q[head].index_add_(0, rows, part_grads[0][0, 0])
        grad_k[head, keys] += part_grads[1][0, 0]
        grad_v[head, keys] += part_grads[2][0, 0]
    return grads


# the op's lists make sizes depend on numbers, which tracing does not see: it calls the kernel as a whole
attend = SoftmaxKernel(
    "attention over lists of blocks", BlockInputs, BlockOptions, _forward, _gradients, op="block_lists"
)
