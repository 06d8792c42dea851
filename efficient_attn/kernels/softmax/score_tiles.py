"""Attention with scores that torch's fused kernel does not have, in tiles of queries and keys: an online softmax in the
forward pass, and the same tiles with known log-sum-exps in the backward pass.

    t = tanh(scale q k^T / cap), s = cap t    with a cap;  s = scale q k^T + bias  without one  [P, G R, C]
    m' = max(m, max_j s),  l <- e^(m - m') l + sum_j e^(s - m'),  o <- e^(m - m') o + e^(s - m') v

for a tile of P key-value heads, R rows of G groups and C keys, and o / l in the end (FlashAttention-2,
arXiv:2307.08691). A tile's scores stay in the cache while they are changed in place, and tiles that no query sees are
skipped: those after a query if causal, and those outside a window. Scores are bounded by a cap, so that with a small
one m stays 0. Powers are of 2: torch's `exp` takes a hundred times as long where it underflows.
"""

from collections.abc import Iterator
from itertools import product
from math import inf, log
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .sink import SinkInputs, apply_sink, sink_gradient, split_groups
from .softmax_kernel import SavedSoftmax, SoftmaxKernel, cut_range

TILE_ELEMENTS = 2**17  # numbers of a tile: half a MiB of float32
TILE_ROWS, TILE_KEYS = 256, 512  # of a tile of one head; of fewer rows, so many more keys or heads
MAX_SMALL_CAP = {torch.float32: 60.0, torch.float64: 600.0}  # caps with normal numbers as exponentials and their sums
LOWEST = -1e30  # a level below any score, in units of log 2
UNBOUNDED = 2**62  # a distance that no query exceeds


class BiasedInputs(NamedTuple):
    """As `SinkInputs`, with a bias of scores ``[1 or B, H, N, M]``, minus infinity where a key is hidden."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor
    bias: Tensor
    valid: Tensor | None


class ScoreOptions(NamedTuple):
    """cap: of the scores, infinity for none. scale: of the scores before it. start: the position of the first query.
    back, ahead: the distances of the first and the last key that a query sees; ahead is 0 if causal."""

    cap: float
    scale: float
    start: int
    back: int = UNBOUNDED
    ahead: int = UNBOUNDED


Inputs = SinkInputs | BiasedInputs


class _ScoreTiles:
    """The tiles of a call. Key-value heads of all rows of the batch form one dimension P, a head's queries G groups; a
    tile is ``[P, G R, C]`` for some heads, some rows of every group and some keys.

    Scores are ``unit`` times a tile's numbers, in units of log 2.
    """

    def __init__(self, inputs: Inputs, options: ScoreOptions) -> None:
        q, k, valid = inputs.q, inputs.k, inputs.valid
        self.capped = options.cap < inf
        self.unit = options.cap / log(2) if self.capped else 1.0
        self.factor = options.scale / (options.cap if self.capped else log(2))
        self.start, self.back, self.ahead = options.start, options.back, options.ahead
        self.q, self.k = split_groups(q, k.shape[1]), k.flatten(0, 1)
        self.hidden = None if valid is None else ~valid.repeat_interleave(k.shape[1], 0)
        self.bias = inputs.bias.unflatten(1, (k.shape[1], -1)) if isinstance(inputs, BiasedInputs) else None
        assert not (self.capped and self.bias is not None), "no model caps scores that have a bias"
        heads, groups, n, _ = self.q.shape
        self.rows = min(n, max(1, TILE_ROWS // groups))
        self.keys = max(TILE_KEYS, TILE_ELEMENTS // (heads * groups * self.rows))
        self.heads = max(1, TILE_ELEMENTS // (groups * self.rows * min(self.keys, k.shape[2])))

    def row_groups(self) -> Iterator[tuple[slice, slice, list[slice]]]:
        """Heads and rows that are processed together, and the keys of their tiles, none if no row sees any."""
        n, m = self.q.shape[2], self.k.shape[1]
        for heads, rows in product(cut_range(len(self.k), self.heads), cut_range(n, self.rows)):
            first = max(self.start + rows.start - self.back, 0)
            end = min(self.start + rows.stop + self.ahead, m)
            tiles = [slice(first + x.start, first + x.stop) for x in cut_range(max(end - first, 0), self.keys)]
            yield heads, rows, tiles

    def make_buffers(self, count: int) -> Tensor:
        """Buffers for ``count`` tiles."""
        size = self.heads * self.q.shape[1] * self.rows * min(self.keys, self.k.shape[1])
        return self.q.new_empty(count, size)

    def score(self, x: Tensor, heads: slice, rows: slice, keys: slice, buffer: Tensor) -> Tensor:
        """The tile of queries ``x [P, G R, D]`` times ``factor``: scores, or with a cap their tanh."""
        tile = _multiply_into(x, self.k[heads, keys].mT, buffer)
        if self.bias is not None:
            for part, bias in zip(tile.unflatten(1, (self.q.shape[1], -1)), self.select(self.bias, heads), strict=True):
                part.add_(bias[:, rows, keys], alpha=1 / log(2))
        return tile.tanh_() if self.capped else tile

    def select(self, bias: Tensor, heads: slice) -> list[Tensor]:
        """``[G, N, M]`` of ``bias [1 or B, Hkv, G, N, M]`` for each of the heads."""
        kv_heads = bias.shape[1]
        numbers = range(len(self.k))[heads]
        return [bias[number // kv_heads if len(bias) > 1 else 0, number % kv_heads] for number in numbers]

    def hide(self, tile: Tensor, heads: slice, rows: slice, keys: slice, value: float) -> Tensor:
        """The tile with this value where a query may not see a key."""
        grouped_tile = tile.unflatten(1, (self.q.shape[1], -1))
        if self.hidden is not None and (hidden := self.hidden[heads, None, None, keys]).any():
            grouped_tile.masked_fill_(hidden, value)
        first, last = self.start + rows.start, self.start + rows.stop - 1
        cuts_later, cuts_earlier = first + self.ahead < keys.stop - 1, last - self.back > keys.start
        if cuts_later:
            later = max(first + self.ahead + 1, keys.start)
            part = grouped_tile[..., later - keys.start :]
            if value == 0:
                part.tril_(first + self.ahead - later)
            else:
                part.masked_fill_(_measure_distances(part, first, later) < -self.ahead, value)
        if cuts_earlier:
            part = grouped_tile[..., : last - self.back - keys.start]
            if value == 0:
                part.triu_(first - self.back - keys.start)
            else:
                part.masked_fill_(_measure_distances(part, first, keys.start) > self.back, value)
        return tile


def _measure_distances(tile: Tensor, query: int, key: int) -> Tensor:
    """The distances ``[R, C]`` of the queries of a tile ``[.., R, C]`` to its keys, from the positions of the first."""
    rows, columns = (torch.arange(size, device=tile.device) for size in tile.shape[-2:])
    return (rows + query)[:, None] - (columns + key)


def _multiply_into(a: Tensor, b: Tensor, buffer: Tensor) -> Tensor:
    """``a @ b`` in a buffer that the next product reuses."""
    shape = *a.shape[:2], b.shape[2]
    return torch.bmm(a, b, out=buffer[: shape[0] * shape[1] * shape[2]].view(shape))


def _slice_rows(x: Tensor, heads: slice, rows: slice) -> Tensor:
    """``[P, G R, ..]`` of ``x [P, G, N, ..]``."""
    return x[heads, :, rows].flatten(1, 2)


def _forward(inputs: Inputs, options: ScoreOptions) -> tuple[Tensor, Tensor]:
    q, k, v, sink = inputs.q, inputs.k, inputs.v, inputs.sink
    out, lse = q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])
    grouped_out, grouped_lse = (split_groups(x, k.shape[1]) for x in (out, lse))
    tiles, values = _ScoreTiles(inputs, options), v.flatten(0, 1)
    (buffer,) = tiles.make_buffers(1)
    is_small = options.cap <= MAX_SMALL_CAP[q.dtype]
    for heads, rows, key_tiles in tiles.row_groups():
        x = _slice_rows(tiles.q, heads, rows) * tiles.factor
        level = x.new_full((*x.shape[:2], 1), 0.0 if is_small else LOWEST)
        total, sums = torch.zeros_like(level), x.new_zeros(*x.shape[:2], v.shape[3])
        for keys in key_tiles:
            tile = tiles.score(x, heads, rows, keys, buffer)
            if not is_small:  # the level follows the highest score that is seen
                highest = tiles.hide(tile.clone(), heads, rows, keys, -inf).amax(-1, keepdim=True)
                before, level = level, torch.maximum(level, highest * tiles.unit)
                fading = (before - level).exp2_()
                total, sums = total.mul_(fading), sums.mul_(fading)
            weights = torch.add(-level, tile, alpha=tiles.unit, out=tile).exp2_()
            tiles.hide(weights, heads, rows, keys, 0)
            total += weights.sum(-1, keepdim=True)
            sums.baddbmm_(weights, values[heads, keys])
        sums /= total.masked_fill(total == 0, 1)
        sides = grouped_out.shape[1], rows.stop - rows.start
        grouped_out[heads, :, rows] = sums.unflatten(1, sides)
        grouped_lse[heads, :, rows] = (level + total.log2_()).mul_(log(2)).squeeze(-1).unflatten(1, sides)
    return apply_sink(out, lse, sink)


def _gradients(grad: Tensor, saved: SavedSoftmax[Any], options: ScoreOptions) -> tuple[Tensor, ...]:
    inputs, out, lse = saved
    q, k, v = inputs.q, inputs.k, inputs.v
    grad_q, grad_k, grad_v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    offsets, delta = lse[..., None] / -log(2), (grad * out).sum(-1, keepdim=True)
    grouped_grad_q, grouped_grad, offsets, grouped_delta = (
        split_groups(x, k.shape[1]) for x in (grad_q, grad, offsets, delta)
    )
    flat_grad_k, flat_grad_v, values = (x.flatten(0, 1) for x in (grad_k, grad_v, v))
    tiles = _ScoreTiles(inputs, options)
    grad_bias = None if tiles.bias is None else torch.zeros_like(tiles.bias)
    score_buffer, weight_buffer, grad_buffer = tiles.make_buffers(3)
    for heads, rows, key_tiles in tiles.row_groups():
        x, tile_grad, offset, delta = (
            _slice_rows(part, heads, rows) for part in (tiles.q, grouped_grad, offsets, grouped_delta)
        )
        x, grad_x = x * tiles.factor, torch.zeros_like(x)
        for keys in key_tiles:
            tile = tiles.score(x, heads, rows, keys, score_buffer)
            weights = weight_buffer[: tile.numel()].view(tile.shape)
            torch.add(offset, tile, alpha=tiles.unit, out=weights).exp2_()
            tiles.hide(weights, heads, rows, keys, 0)
            flat_grad_v[heads, keys].baddbmm_(weights.mT, tile_grad)
            grad_score = _multiply_into(tile_grad, values[heads, keys].mT, grad_buffer).sub_(delta).mul_(weights)
            if grad_bias is not None:
                parts = grad_score.unflatten(1, (tiles.q.shape[1], -1))
                for part, target in zip(parts, tiles.select(grad_bias, heads), strict=True):
                    target[:, rows, keys] += part
            if tiles.capped:
                grad_score.addcmul_(grad_score, tile.square_(), value=-1)  # the derivative of tanh is 1 - tanh^2
            grad_x.baddbmm_(grad_score, tiles.k[heads, keys])
            flat_grad_k[heads, keys].baddbmm_(grad_score.mT, x)
        grouped_grad_q[heads, :, rows] = (grad_x * options.scale).unflatten(1, (grouped_grad_q.shape[1], -1))
    grads = grad_q, grad_k.mul_(options.scale / tiles.factor), grad_v, sink_gradient(grad, out, lse, inputs.sink)
    return grads if grad_bias is None else (*grads, grad_bias.flatten(1, 2))


# softmax([s, sink]) without its last column, times v; all are float32 or float64. A query without keys gets zeros.
attend = SoftmaxKernel(
    "attention under a soft cap", SinkInputs, ScoreOptions, _forward, _gradients, n_differentiated=4, op="capped"
)
attend_biased = SoftmaxKernel(
    "attention with a bias", BiasedInputs, ScoreOptions, _forward, _gradients, n_differentiated=5, op="biased"
)
