"""Softmax over keys that a rule selects for each query, with the scores of some queries stored at a time.

Scores are computed in float64, so that rounding rarely decides which of two keys is selected.
"""

from collections.abc import Callable, Iterator
from math import inf

import torch
from torch import Tensor

from ..contract.mask import Mask
from .dense import masked_softmax, widen

ROWS = 64  # queries whose scores are stored together, of all heads of a group

# from scores ``[B, Hkv, group, rows, keys]`` and visible pairs, ``[B or 1, 1, 1, rows, keys]`` bool, to selected ones
Rule = Callable[[Tensor, Tensor], Tensor]


def attend_selected(q: Tensor, k: Tensor, v: Tensor, mask: Mask, rule: Rule) -> Tensor:
    """softmax(q k^T / sqrt(D)) v over the keys that a rule selects. q ``[B, H, N, D]``, k, v ``[B, Hkv, M, D or
    E]``."""
    (batch, heads, n, width), (kv_heads, m) = q.shape, k.shape[1:3]
    keys, values, parts = k.double(), widen(v), []
    for rows in cut_rows(n, heads // kv_heads):
        first = rows.start
        part = mask.rows(rows, n, m)
        stop = min(max(part.span(rows.stop - first, m)[1], 1), m) if mask.causal else m
        queries = q[:, :, rows].double().reshape(batch, kv_heads, -1, width)
        scores = (queries @ keys[:, :, :stop].mT * width**-0.5).unflatten(2, (heads // kv_heads, -1))
        visible = part.dense(rows.stop - first, m, device=q.device)[:, :, None, :, :stop]
        weights = masked_softmax(scores.to(values.dtype), rule(scores, visible)).flatten(2, 3)
        parts.append((weights @ values[:, :, :stop]).view(batch, heads, -1, v.shape[3]))
    return torch.cat(parts, 2).to(q.dtype)


def cut_rows(n: int, group: int) -> Iterator[slice]:
    """n queries, as many at a time as are computed together in each head of a group."""
    step = max(ROWS // group, 1)
    for first in range(0, n, step):
        yield slice(first, min(first + step, n))


def select_largest(scores: Tensor, visible: Tensor, count: int) -> Tensor:
    """The visible keys whose score is at least the count-th largest of a query: more than count if scores are equal."""
    scores = scores.masked_fill(~visible, -inf)
    return visible & (scores >= scores.topk(min(count, scores.shape[-1])).values[..., -1:])


def select_blocks(scores: Tensor, visible: Tensor, count: int, size: int) -> Tensor:
    """The visible keys in the blocks of ``size`` keys that have the largest sums of softmax weights."""
    hidden = scores.masked_fill(~visible, -inf)
    m = scores.shape[-1]
    blocks = torch.nn.functional.pad(hidden, (0, -m % size), value=-inf).unflatten(-1, (-1, size))
    mass = blocks.logsumexp(-1)
    selection = select_largest(mass, mass > -inf, count)
    return visible & selection.repeat_interleave(size, -1)[..., :m]
