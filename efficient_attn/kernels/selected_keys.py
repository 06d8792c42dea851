"""Softmax over keys that a rule selects for each query, with the scores of some queries stored at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..contract.mask import Mask
from .custom_ops import in_functorch_transform
from .dense import masked_softmax
from .step_sizes import limit_elements

FEW_ROWS = 16  # of a head, for which one `gather` of all heads is faster, as it is on a GPU for any number
MOST_PASSES = 24  # over all numbers, each of which finds the next largest; a sort is faster for more
ROWS = 64  # queries whose scores are stored together, of all heads of a group

# from scores ``[B, Hkv, group, rows, keys]`` and visible pairs, ``[B or 1, 1, 1, rows, keys]`` bool, to selected ones
Rule = Callable[[Tensor, Tensor], Tensor]
Result = TypeVar("Result")


def attend_selected(q: Tensor, k: Tensor, v: Tensor, mask: Mask, rule: Rule) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the keys that a rule selects. q ``[B, H, N, D]``, k ``[B, Hkv, M, D]``, v ``[B,
    Hkv, M, E]``. Scores are in the dtype of q and k, the rest and the result in that of v."""
    n, m, group, mask = q.shape[2], k.shape[2], q.shape[1] // k.shape[1], copy_tensors(mask)

    def attend_some(rows: slice) -> Tensor:
        return recompute(partial(_attend_rows, mask.rows(rows, n, m), rule), q[:, :, rows], k, v)

    return torch.cat([attend_some(rows) for rows in cut_rows(n, k, group)], 2)


def copy_tensors(mask: Mask) -> Mask:
    """A mask for a recomputation, which must not see what becomes of the caller's tensors."""
    return replace(mask, **{name: getattr(mask, name).clone() for name in mask.used - {"causal", "query_start"}})


def _attend_rows(mask: Mask, rule: Rule, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    (batch, heads, n, width), (kv_heads, m) = q.shape, k.shape[1:3]
    stop = min(max(mask.span(n, m)[1], 1), m) if mask.causal else m
    visible = mask.dense(n, m, device=q.device)[:, :, None, :, :stop]
    queries = q.reshape(batch, kv_heads, -1, width)
    scores = (queries @ k[:, :, :stop].mT * width**-0.5).unflatten(2, (heads // kv_heads, -1))
    weights = masked_softmax(scores.to(v.dtype), rule(scores.detach(), visible)).flatten(2, 3)
    return (weights @ v[:, :, :stop]).view(batch, heads, n, v.shape[3])


def recompute(run: Callable[..., Result], *tensors: Tensor) -> Result:
    """``run(*tensors)``, which is computed again in the backward pass, so that no weights are stored."""
    stores = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if not stores or torch.compiler.is_compiling() or in_functorch_transform():
        return run(*tensors)
    return cast(Result, checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=False))


def cut_rows(n: int, keys: Tensor, group: int = 1, in_cache: int = ROWS) -> Iterator[slice]:
    """n queries, as many at a time as are computed together in each head of a group: on a GPU as many as have no more
    scores with ``keys [.., M, D]`` than may exist there."""
    step = max(max(in_cache, limit_elements(keys, 0) // max(keys[..., 0].numel(), 1)) // group, 1)
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def take_keys(x: Tensor, index: Tensor) -> Tensor:
    """``x [B, Hkv, M, E]`` at the places ``[B, Hkv, count]``. `index_select` copies whole rows, which took an eighth of
    the time of `gather` (8 heads of 64, 1,024 of 30,000 keys, float32, one thread of an AMD Zen 4)."""
    (batch, heads, m, width), count = x.shape, index.shape[2]
    if x.is_contiguous():
        first = torch.arange(0, batch * heads * m, m, device=x.device).view(batch, heads, 1)
        return x.view(-1, width).index_select(0, (index + first).flatten()).view(batch, heads, count, width)
    if count < FEW_ROWS or x.device.type != "cpu":
        return x.gather(2, index[..., None].expand(-1, -1, -1, width))
    heads_of_rows = (zip(*pair, strict=True) for pair in zip(x, index, strict=True))  # views of any strides
    parts = [keys.index_select(0, places) for pairs in heads_of_rows for keys, places in pairs]
    return torch.stack(parts).view(batch, heads, count, width)


def find_largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest numbers of each row, of equal ones the first, and their places, ``[..., min(count, columns)]``. Of
    minus infinity the places are any, also those of others. Overwrites x."""
    count = min(count, x.shape[-1])
    is_slow = x.device.type != "cpu" or in_functorch_transform()  # two launches a pass; entries are written one by one
    if is_slow or not 0 < count <= MOST_PASSES:
        ranked = x.sort(dim=-1, descending=True, stable=True)
        return ranked.values[..., :count], ranked.indices[..., :count]
    passes = []
    for _ in range(count):
        passes.append(x.max(dim=-1, keepdim=True))  # of equal ones, the first
        x.scatter_(-1, passes[-1].indices, -inf)
    return torch.cat([p.values for p in passes], -1), torch.cat([p.indices for p in passes], -1)


def estimate_rows_bytes(batch: int, kv_heads: int, m: int, *, training: bool) -> int:
    """The bytes of the scores of the queries that are computed together, in float64, and of what is made of them."""
    return batch * kv_heads * ROWS * m * 8 * (4 if training else 3)


def select_largest(scores: Tensor, visible: Tensor, count: int) -> Tensor:
    """The visible keys whose score is at least the count-th largest of a query: more than count if scores are equal."""
    scores = scores.masked_fill(~visible, -inf)
    return visible & (scores >= scores.topk(min(count, scores.shape[-1])).values[..., -1:])


def select_blocks(scores: Tensor, visible: Tensor, count: int, size: int) -> Tensor:
    """The visible keys in the blocks of ``size`` keys that have the largest sums of softmax weights, of equal ones the
    first."""
    m, hidden = scores.shape[-1], scores.masked_fill(~visible, -inf)
    row_max = hidden.amax(-1, keepdim=True)
    weights = (hidden - row_max.masked_fill(row_max.isinf(), 0)).exp()
    mass = F.pad(weights, (0, -m % size)).unflatten(-1, (-1, size)).sum(-1)
    # by index, because compiled code may compute a sum twice with different rounding
    best = mass.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    selection = torch.zeros_like(mass, dtype=torch.bool).scatter(-1, best, value=True)
    return visible & spread_blocks(selection, size, m)


def spread_blocks(selection: Tensor, size: int, m: int) -> Tensor:
    """``[.., m]``, for each key the entry of its block. Not by `repeat_interleave` and a slice, nor by an index that is
    a quotient, which inductor of torch 2.13 compiles to wrong results on a CPU."""
    index = torch.arange(selection.shape[-1], device=selection.device)[:, None].expand(-1, size).reshape(-1)[:m]
    return selection.index_select(-1, index)
