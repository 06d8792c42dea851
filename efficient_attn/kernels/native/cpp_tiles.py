"""Softmax over the tiles of a plan in C++ (tiles.cpp), forward and backward: what `parts` does in torch.

The library reads keys and values where they are, by their positions, and a call passes all tiles of a plan. Shapes are
``q [Bh, N, G, D]``, ``k, v [Bh, M, D or E]``, ``valid [B, M]``, ``out [Bh, N, G, E]`` and ``lse [Bh, N, G]``.
"""

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from ...shared_caches import shared_cache
from ..mask_cache import MASK_CACHE
from ..sparse.additive_masks import MAX_CACHED_PAIRS
from ..sparse.tiles import Step, Tile, TilePlan, Tiling, View
from .building import call, contiguous_rows, count_parts, make_integers, pack_tensors

DTYPES = torch.float32, torch.float64, torch.bfloat16, torch.float16
MAX_MASK_PAIRS = 1 << 22  # pairs of the masks that exist together
MAX_PART_ELEMENTS = 1 << 24  # numbers of the gradients by keys, or by values, of all parts of heads for threads
MAX_KEPT_BYTES = 1 << 18  # of the positions and masks of a plan that are kept with it

CPU = torch.device("cpu")


class _Piece(NamedTuple):
    """Some windows of a tile, the positions of their keys ``[1 or windows, keys]``, and by how much these advance from
    window to window."""

    tiling: Tiling
    step: Step
    positions: Tensor
    advance: int


class _LaneMask(NamedTuple):
    """Which keys the rows of all heads of a group see, ``[1 or windows, keys, rows * group]``; None for all."""

    lanes: Tensor | None


def attend(
    plan: TilePlan, scale: float, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exps of all rows; minus infinity for a row without keys."""
    sum_dtype = torch.promote_types(q.dtype, torch.float32)
    sums = q.new_zeros(*q.shape[:3], v.shape[2], dtype=sum_dtype)
    largest = q.new_full((*q.shape[:3], 1), float("-inf"), dtype=sum_dtype)
    totals = torch.zeros_like(largest)
    q, k, v = map(contiguous_rows, (q, k, v))
    _call("attend", plan, scale, 1, (q, k, v, valid, sums, largest, totals))
    lse = (largest + totals.log2()).mul_(log(2))[..., 0]
    out = sums if sums.dtype == q.dtype else q.new_empty(sums.shape)
    return torch.div(sums, totals.masked_fill_(totals == 0, 1), out=out), lse


def backward(
    plan: TilePlan,
    scale: float,
    grad: Tensor,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
    results: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v. tensors, results: what `attend` took and returned; log-sum-exps are finite."""
    q, k, v, valid = tensors
    out, lse = results
    q, k, v, grad, out = map(contiguous_rows, (q, k, v, grad, out))
    sum_dtype = torch.promote_types(q.dtype, torch.float32)
    parts = min(count_parts(len(k)), max(MAX_PART_ELEMENTS // max(k.numel(), v.numel(), 1), 1))
    grad_q = q.new_zeros(q.shape, dtype=sum_dtype)
    part_grads = [x.new_zeros(len(k) * parts, *x.shape[1:], dtype=sum_dtype) for x in (k, v)]
    _call("backward", plan, scale, parts, (q, k, v, valid, grad, out, lse[..., None], grad_q, *part_grads))
    grad_k, grad_v = (x if parts == 1 else x.unflatten(0, (-1, parts)).sum(1) for x in part_grads)
    return grad_q.to(q.dtype), grad_k.to(q.dtype), grad_v.to(q.dtype)


def _call(name: str, plan: TilePlan, scale: float, parts: int, tensors: tuple[Tensor | None, ...]) -> None:
    """Call a function of the library for the tiles of a plan."""
    q, k, v, valid, *_ = tensors
    assert q is not None
    assert k is not None
    assert v is not None
    (heads, keys, width), group = k.shape, q.shape[2]
    heads_per_row = 1 if valid is None else max(heads // max(len(valid), 1), 1)
    packed = pack_tensors(*(x.transpose(1, 2) if x is not None and x.ndim == 4 else x for x in tensors))
    for tiles in _keep_tiles(plan, group) or _describe_tiles(plan, group):
        sizes = make_integers(heads, group, keys, width, v.shape[2], heads_per_row, parts, tiles.n_tiles)
        call("tiles", name, q, packed, tiles.numbers, sizes, ctypes.c_double(scale))


class _Tiles(NamedTuple):
    """The library's tiles as numbers, one after another, and the positions and masks that they point to."""

    n_tiles: int
    numbers: ctypes.Array[ctypes.c_int64]
    tensors: tuple[Tensor, ...]


@shared_cache
@lru_cache(maxsize=64)
def _keep_tiles(plan: TilePlan, group: int) -> tuple[_Tiles, ...] | None:
    """All tiles of a plan if what they point to is small: in a short call describing them takes as long as softmax."""
    masked = (tile for tiling in plan for tile in tiling.tiles if tile.rule is not None)
    pairs = sum(tile.queries.size * tile.keys.size * (tile.count if tile.mask is None else 1) for tile in masked)
    size = pairs * group + sum(piece.positions.nbytes for piece in _cut_plan(plan))
    return tuple(_describe_tiles(plan, group)) if size <= MAX_KEPT_BYTES else None


def _describe_tiles(plan: TilePlan, group: int) -> Iterator[_Tiles]:
    """The tiles of a plan, as many at a time as masks may exist together."""
    described: list[tuple[int, ...]] = []
    tensors: list[Tensor] = []
    pairs = 0
    for piece in _cut_plan(plan):
        (_, (tile, first, last), positions, advance), queries = piece, piece.step.tile.queries
        mask = _make_mask(piece, group)
        row = queries.first + first * queries.advance
        windows = last - first, queries.size, row, queries.step, queries.advance, tile.keys.size, advance
        pointers = (0, 0) if mask is None else (mask.data_ptr(), _stride(mask))
        described.append((*windows, positions.data_ptr(), _stride(positions), *pointers))
        tensors += [positions] if mask is None else [positions, mask]
        pairs += 0 if mask is None else mask.numel()
        if pairs > MAX_MASK_PAIRS:
            yield _Tiles(len(described), make_integers(*chain(*described)), tuple(tensors))
            described, tensors, pairs = [], [], 0
    if described:
        yield _Tiles(len(described), make_integers(*chain(*described)), tuple(tensors))


def _stride(x: Tensor) -> int:
    """From window to window: 0 if all share one."""
    return x.stride(0) if len(x) > 1 else 0


@shared_cache
@lru_cache(maxsize=16)
def _cut_plan(plan: TilePlan) -> tuple[_Piece, ...]:
    """The tiles of a plan, with masks of their own for some windows at a time."""
    return tuple(_locate(tiling, step) for tiling in plan for tile in tiling.tiles for step in _cut_tile(tile))


def _cut_tile(tile: Tile) -> Iterator[Step]:
    own_masks = tile.rule is not None and tile.mask is None
    size = max(MAX_CACHED_PAIRS // (tile.queries.size * tile.keys.size), 1) if own_masks else tile.count
    for first in range(0, tile.count, size):
        yield Step(tile, first, min(first + size, tile.count))


def _locate(tiling: Tiling, step: Step) -> _Piece:
    keys = step.tile.keys
    if isinstance(keys, View) and tiling.columns is None:
        return _Piece(tiling, step, keys.positions(step.first, step.first + 1, CPU), keys.advance)
    return _Piece(tiling, step, tiling.positions(step, CPU).contiguous(), 0)


def _make_mask(piece: _Piece, group: int) -> Tensor | None:
    tile = piece.step.tile
    if tile.rule is None:
        return None
    step = piece.step if tile.mask is None else Step(tile, 0, 1)

    def make() -> _LaneMask:
        allowed = piece.tiling.allowed(step, CPU)
        if allowed is None or allowed.all():
            return _LaneMask(None)
        return _LaneMask(allowed.repeat_interleave(group, dim=1).mT.contiguous())

    if group * step.pairs > MAX_CACHED_PAIRS:
        return make().lanes
    return MASK_CACHE.find((*step, group), make).lanes
