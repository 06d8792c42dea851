"""Causal softmax of each query over its own block of keys and a list of earlier ones, without an N x M array.

A query's own block is one call of torch's fused kernel for all heads. Of each other block all queries whose lists name
it are gathered, attend to it together, and are merged by their log-sum-exps (MoBA, arXiv:2502.13189, section 2.3). The
backward pass does the same with the log-sum-exps of whole rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fused, merge
from .merge import FusedInputs, FusedOptions
from .softmax_kernel import SavedSoftmax, SoftmaxKernel

TILE_ROWS = 64


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
    """Rows by position, so that a later one changes no earlier one's place in a tile."""
    (_, group, n, count), m, size = inputs.blocks.shape, inputs.k.shape[1], options.size
    if not count:
        return
    order = inputs.blocks.transpose(1, 2).flatten(1).sort(dim=1, stable=True)
    for head, (numbers, places) in enumerate(zip(*order, strict=True)):
        named, lengths = numbers.unique_consecutive(return_counts=True)
        rows = places.div(count, rounding_mode="floor")
        rows = rows % group * n + rows.div(group, rounding_mode="floor")
        for number, part_rows in zip(named.tolist(), rows.split(lengths.tolist()), strict=True):
            if number >= 0:
                yield _Part(head, part_rows, slice(number * size, min((number + 1) * size, m)))


def _select(inputs: BlockInputs, part: _Part) -> FusedInputs:
    """The kernel's inputs of one head."""
    q, k, v, _, valid = inputs
    tiles = _make_tiles(q[part.head].flatten(0, 1).index_select(0, part.rows))
    keys, values = (x[part.head, part.keys].expand(len(tiles), 1, -1, -1) for x in (k, v))
    return FusedInputs(tiles, keys, values, _hide(valid, part, q.dtype))


def _hide(valid: Tensor | None, part: _Part, dtype: torch.dtype) -> Tensor | None:
    return None if valid is None else fused.additive_mask(valid[part.head, part.keys], dtype)[None, None, None]


def _make_tiles(x: Tensor) -> Tensor:
    """Rows ``[R, E]`` as ``[tiles, 1, TILE_ROWS, E]``. Rounding depends on sizes, and on a number's place in a row of
    vectors: in tiles, a row's does not depend on how many later ones follow."""
    return F.pad(x, (0, 0, 0, -len(x) % TILE_ROWS)).unflatten(0, (-1, TILE_ROWS))[:, None]


def _join_tiles(x: Tensor, part: _Part) -> Tensor:
    """The opposite, without the rows that were added."""
    return x[:, 0].flatten(0, 1)[: len(part.rows)]


def _tile_rows(x: Tensor, part: _Part) -> Tensor:
    """The rows of a part, of ``x [G, N, ..]``, as ``[1, 1, rows, ..]``."""
    return x.flatten(0, 1).index_select(0, part.rows)[None, None]


def _without_hidden(out: Tensor, lse: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The kernel's results, which are undefined for rows without keys: zeros, and minus infinity."""
    if mask is None:
        return out, lse
    hidden = mask.amax(-1) == float("-inf")
    return out.masked_fill(hidden[..., None], 0), lse.masked_fill(hidden, float("-inf"))


def _forward(inputs: BlockInputs, options: BlockOptions) -> tuple[Tensor, Tensor]:
    q = inputs.q
    out, lse = q.new_zeros(*q.shape[:3], inputs.v.shape[2]), q.new_full(q.shape[:3], float("-inf"))
    for rows, _, part, causal in _own_parts(inputs, options):
        results = fused.attend_with_lse(part, FusedOptions(causal, options.scale))
        out[:, :, rows], lse[:, :, rows] = _without_hidden(*results, part.mask)
    for part in _listed_parts(inputs, options):
        tiles = _select(inputs, part)
        results = _without_hidden(*merge.attend(tiles, FusedOptions(False, options.scale)), tiles.mask)
        flat_out, flat_lse = out[part.head].flatten(0, 1), lse[part.head].flatten(0, 1)
        row_out = _make_tiles(flat_out.index_select(0, part.rows))
        row_lse = _make_tiles(flat_lse.index_select(0, part.rows)[:, None])[..., 0]
        merge.join(row_out, row_lse, *results)
        flat_out[part.rows], flat_lse[part.rows] = _join_tiles(row_out, part), _join_tiles(row_lse, part)
    return out, lse.masked_fill_(lse.isinf(), 0)


def _gradients(grad: Tensor, saved: SavedSoftmax[BlockInputs], options: BlockOptions) -> tuple[Tensor, ...]:
    inputs, out, lse = saved
    grads = grad_q, grad_k, grad_v = tuple(x.new_zeros(x.shape) for x in inputs[:3])
    for rows, keys, part, causal in _own_parts(inputs, options):
        saved_part = SavedSoftmax(part, out[:, :, rows], lse[:, :, rows])
        part_grads = fused.gradients_with_lse(grad[:, :, rows], saved_part, FusedOptions(causal, options.scale))
        grad_q[:, :, rows] = part_grads[0]
        grad_k[:, keys] += part_grads[1][:, 0]
        grad_v[:, keys] += part_grads[2][:, 0]
    for part in _listed_parts(inputs, options):
        head, rows, keys = part
        q, k, v = _tile_rows(inputs.q[head], part), inputs.k[head, keys][None, None], inputs.v[head, keys][None, None]
        part_inputs = FusedInputs(q, k, v, _hide(inputs.valid, part, q.dtype))
        saved_part = SavedSoftmax(part_inputs, _tile_rows(out[head], part), _tile_rows(lse[head], part))
        part_grad = _tile_rows(grad[head], part)
        part_grads = merge.attend_backward(part_grad, saved_part, FusedOptions(False, options.scale))
        grad_q[head].flatten(0, 1).index_add_(0, rows, part_grads[0][0, 0])
        grad_k[head, keys] += part_grads[1][0, 0]
        grad_v[head, keys] += part_grads[2][0, 0]
    return grads


# the op's lists make sizes depend on numbers, which tracing does not see: it calls the kernel as a whole
attend = SoftmaxKernel(
    "attention over lists of blocks", BlockInputs, BlockOptions, _forward, _gradients, op="block_lists"
)
