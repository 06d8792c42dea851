"""Attention with capped scores, cap tanh(s / cap), in tiles of queries and keys: an online softmax in the forward pass,
and the same tiles with known log-sum-exps in the backward pass.

    t = tanh(scale q k^T / cap)  [P, G R, C]     a tile: P key-value heads, R rows of G groups, C keys
    m' = max(m, cap max_j t),  l <- e^(m - m') l + sum_j e^(cap t - m'),  o <- e^(m - m') o + e^(cap t - m') v

and o / l in the end (FlashAttention-2, arXiv:2307.08691). torch's fused kernel does not support tanh between product
and softmax. Here a tile's scores stay in the cache while they are changed in place, and tiles that no query sees are
skipped. Scores are bounded by the cap, so that with a small cap m stays 0. Powers are of 2: torch's `exp` takes a
hundred times as long where it underflows.
"""

from collections.abc import Iterator
from itertools import product
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from .sink import SinkInputs, apply_sink, sink_gradient, split_groups
from .softmax_kernel import SavedSoftmax, SoftmaxKernel, cut_range

TILE_ELEMENTS = 2**17  # numbers of a tile: half a MiB of float32
TILE_ROWS, TILE_KEYS = 256, 512  # of a tile of one head; of fewer rows, so many more keys or heads
MAX_SMALL_CAP = {torch.float32: 60.0, torch.float64: 600.0}  # caps with normal numbers as exponentials and their sums


class SoftcapOptions(NamedTuple):
    """scale: of the scores before the cap. start: the position of the first query; query i sees keys up to start + i if
    causal."""

    cap: float
    scale: float
    causal: bool
    start: int


class _SoftcapTiles:
    """The tiles of a call. Key-value heads of all rows of the batch form one dimension P, a head's queries G groups; a
    tile is ``[P, G R, C]`` for some heads, some rows of every group and some keys."""

    def __init__(self, inputs: SinkInputs, options: SoftcapOptions) -> None:
        q, k, _, _, valid = inputs
        self.power, self.factor = options.cap / log(2), options.scale / options.cap
        self.causal, self.start = options.causal, options.start
        self.q, self.k = split_groups(q, k.shape[1]), k.flatten(0, 1)
        self.hidden = None if valid is None else ~valid.repeat_interleave(k.shape[1], 0)
        heads, groups, n, _ = self.q.shape
        self.rows = min(n, max(1, TILE_ROWS // groups))
        self.keys = max(TILE_KEYS, TILE_ELEMENTS // (heads * groups * self.rows))
        self.heads = max(1, TILE_ELEMENTS // (groups * self.rows * min(self.keys, k.shape[2])))

    def row_groups(self) -> Iterator[tuple[slice, slice, list[slice]]]:
        """Heads and rows that are processed together, and the keys of their tiles, none if no row sees any."""
        n, m = self.q.shape[2], self.k.shape[1]
        for heads, rows in product(cut_range(len(self.k), self.heads), cut_range(n, self.rows)):
            yield heads, rows, list(cut_range(min(self.start + rows.stop, m) if self.causal else m, self.keys))

    def make_buffers(self, count: int) -> Tensor:
        """Buffers for ``count`` tiles."""
        size = self.heads * self.q.shape[1] * self.rows * min(self.keys, self.k.shape[1])
        return self.q.new_empty(count, size)

    def score_tanh(self, x: Tensor, heads: slice, keys: slice, buffer: Tensor) -> Tensor:
        """tanh(s / cap) of queries ``x [P, G R, D]`` times ``factor``."""
        return _multiply_into(x, self.k[heads, keys].mT, buffer).tanh_()

    def zero_hidden(self, tile: Tensor, heads: slice, rows: slice, keys: slice) -> Tensor:
        """The tile with zeros where a query may not see a key."""
        grouped_tile = tile.unflatten(1, (self.q.shape[1], -1))
        if self.hidden is not None and (hidden := self.hidden[heads, None, None, keys]).any():
            grouped_tile.masked_fill_(hidden, 0)
        first = self.start + rows.start  # the last key that the first row sees
        if self.causal and first < keys.stop - 1:
            later = max(first + 1, keys.start)
            grouped_tile[..., later - keys.start :].tril_(first - later)
        return tile


def _multiply_into(a: Tensor, b: Tensor, buffer: Tensor) -> Tensor:
    """``a @ b`` in a buffer that the next product reuses."""
    shape = *a.shape[:2], b.shape[2]
    return torch.bmm(a, b, out=buffer[: shape[0] * shape[1] * shape[2]].view(shape))


def _slice_rows(x: Tensor, heads: slice, rows: slice) -> Tensor:
    """``[P, G R, ..]`` of ``x [P, G, N, ..]``."""
    return x[heads, :, rows].flatten(1, 2)


def _forward(inputs: SinkInputs, options: SoftcapOptions) -> tuple[Tensor, Tensor]:
    q, k, v, sink, _ = inputs
    out, lse = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
    grouped_out, grouped_lse = (split_groups(x, k.shape[1]) for x in (out, lse))
    tiles, values = _SoftcapTiles(inputs, options), v.flatten(0, 1)
    (buffer,) = tiles.make_buffers(1)
    is_small = options.cap <= MAX_SMALL_CAP[q.dtype]
    for heads, rows, key_tiles in tiles.row_groups():
        x = _slice_rows(tiles.q, heads, rows) * tiles.factor
        level = x.new_full((*x.shape[:2], 1), 0.0 if is_small else -tiles.power)
        total, sums = torch.zeros_like(level), x.new_zeros(*x.shape[:2], v.shape[3])
        for keys in key_tiles:
            tile = tiles.score_tanh(x, heads, keys, buffer)
            if not is_small:  # the level follows the highest score that is seen: hidden ones count as the lowest
                highest = tiles.zero_hidden(tile + 1, heads, rows, keys).amax(-1, keepdim=True) - 1
                before, level = level, torch.maximum(level, highest * tiles.power)
                fading = (before - level).exp2_()
                total, sums = total.mul_(fading), sums.mul_(fading)
            weights = torch.add(-level, tile, alpha=tiles.power, out=tile).exp2_()
            tiles.zero_hidden(weights, heads, rows, keys)
            total += weights.sum(-1, keepdim=True)
            sums.baddbmm_(weights, values[heads, keys])
        sums /= total.masked_fill(total == 0, 1)
        sides = grouped_out.shape[1], rows.stop - rows.start
        grouped_out[heads, :, rows] = sums.unflatten(1, sides)
        grouped_lse[heads, :, rows] = (level + total.log2_()).mul_(log(2)).squeeze(-1).unflatten(1, sides)
    return apply_sink(out, lse, sink)


def _gradients(grad: Tensor, saved: SavedSoftmax[SinkInputs], options: SoftcapOptions) -> tuple[Tensor, ...]:
    (q, k, v, sink, _), out, lse = saved
    grad_q, grad_k, grad_v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    offsets, delta = lse[..., None] / -log(2), (grad * out).sum(-1, keepdim=True)
    grouped_grad_q, grouped_grad, offsets, grouped_delta = (
        split_groups(x, k.shape[1]) for x in (grad_q, grad, offsets, delta)
    )
    flat_grad_k, flat_grad_v, values = (x.flatten(0, 1) for x in (grad_k, grad_v, v))
    tiles = _SoftcapTiles(saved.inputs, options)
    score_buffer, weight_buffer, grad_buffer = tiles.make_buffers(3)
    for heads, rows, key_tiles in tiles.row_groups():
        x, tile_grad, offset, delta = (
            _slice_rows(part, heads, rows) for part in (tiles.q, grouped_grad, offsets, grouped_delta)
        )
        x, grad_x = x * tiles.factor, torch.zeros_like(x)
        for keys in key_tiles:
            tile = tiles.score_tanh(x, heads, keys, score_buffer)
            weights = weight_buffer[: tile.numel()].view(tile.shape)
            torch.add(offset, tile, alpha=tiles.power, out=weights).exp2_()
            tiles.zero_hidden(weights, heads, rows, keys)
            flat_grad_v[heads, keys].baddbmm_(weights.mT, tile_grad)
            grad_score = _multiply_into(tile_grad, values[heads, keys].mT, grad_buffer).sub_(delta).mul_(weights)
            grad_score.addcmul_(grad_score, tile.square_(), value=-1)  # the derivative of tanh is 1 - tanh^2
            grad_x.baddbmm_(grad_score, tiles.k[heads, keys])
            flat_grad_k[heads, keys].baddbmm_(grad_score.mT, x)
        grouped_grad_q[heads, :, rows] = (grad_x * options.scale).unflatten(1, (grouped_grad_q.shape[1], -1))
    return grad_q, grad_k.mul_(options.cap), grad_v, sink_gradient(grad, out, lse, sink)


# softmax([cap tanh(scale q k^T / cap), sink]) without its last column, times v; all are float32 or float64. A query
# without keys gets zeros.
attend = SoftmaxKernel(
    "attention under a soft cap", SinkInputs, SoftcapOptions, _forward, _gradients, n_differentiated=4, op="capped"
)
