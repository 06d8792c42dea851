"""Keys that an indexer selects for all heads: the largest of sum_j w_j relu(q_j . k) of each query."""

from functools import partial

import torch
from torch import Tensor

from ..contract.mask import Mask
from .dense import masked_softmax, widen
from .selected_keys import copy_tensors, cut_rows, recompute, take_keys
from .softmax.sdpa import attend_fused

ROWS = 64  # queries whose scores by the indexer exist at a time
GATHERED = 2**22  # entries of keys and values that are gathered at a time
# the number of keys from which only the selected ones are read, in multiples of these: fewer are faster all at once (4
# heads of 64, 8,192 positions, float32, one thread of an AMD Zen 4: 1.7 s instead of 2.0 at 128 times, 1.8 instead of
# 4.1 at 33 times)
LONG_CALL = 160


def score_keys(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """sum_j w_j relu(q_j . k), ``[B, N, M]`` in float64, of ``queries [B, N, heads, D]``, ``weights [B, N, heads]`` and
    ``keys [B, M, D]``; without gradients, as in the paper, where the indexer learns from a loss of its own."""
    return _score(*(x.detach().double() for x in (queries, weights, keys)))


def _score(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    products = (queries.flatten(1, 2) @ keys.mT).relu_().unflatten(1, queries.shape[1:3])
    return (weights[:, :, None] @ products)[:, :, 0]


def compute_indexer_loss(q: Tensor, k: Tensor, mask: Mask, indexer: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The mean over queries that see a key of KL(p, softmax(I)): p is the mean over heads of the weights of exact
    attention, and I the scores of the indexer. A number, in float32 or wider, differentiable by the indexer only."""
    n, m = q.shape[2], k.shape[2]
    queries, weights, keys = (widen(x) for x in indexer)
    allowed, wide_k = mask.dense(n, m, device=q.device)[:, 0], widen(k)
    total = keys.new_zeros(())
    for rows in cut_rows(n, k, q.shape[1] // k.shape[1]):
        visible = allowed[:, rows].expand(len(q), -1, -1)
        run = partial(_sum_divergences, visible, widen(q[:, :, rows]), wide_k)
        total = total + recompute(run, queries[:, rows], weights[:, rows], keys)
    return total / allowed.expand(len(q), -1, -1).any(-1).sum().clamp(min=1)


def _sum_divergences(visible: Tensor, q: Tensor, k: Tensor, queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """The sum over rows, of those without keys zero. visible: bool ``[B, rows, M]``."""
    rows = q.reshape(len(q), k.shape[1], -1, q.shape[3]) * q.shape[3] ** -0.5
    attention = masked_softmax((rows @ k.mT).view(*q.shape[:3], -1), visible[:, None]).mean(1)
    scores = _score(queries, weights, keys).masked_fill(~visible, -torch.inf)
    has_keys = visible.any(-1, keepdim=True)
    logs = scores.masked_fill(~has_keys, 0).log_softmax(-1).masked_fill(~visible, 0)
    return (torch.xlogy(attention, attention) - attention * logs).sum()


def select_exactly(scores: Tensor, visible: Tensor, count: int) -> Tensor:
    """The visible keys with the largest scores, exactly ``count`` if there are as many; of equal ones the first."""
    scores = scores.masked_fill(~visible, -torch.inf)
    if count >= scores.shape[-1]:
        return visible.expand_as(scores)
    least = scores.topk(count, sorted=False).values.amin(-1, keepdim=True)
    larger, equal = scores > least, scores == least
    free = count - larger.sum(-1, keepdim=True)
    return visible & (larger | (equal & (equal.cumsum(-1) <= free)))


def attend_indexed(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, indexer: tuple[Tensor, Tensor, Tensor], count: int
) -> Tensor:
    """Causal softmax of each query over ``count`` keys, the same for all heads. indexer: the arguments of `score_keys`.
    Up to `LONG_CALL` times as many keys, all scores are computed and those of other keys hidden."""
    n, m, mask = q.shape[2], k.shape[2], copy_tensors(mask)
    queries, weights, keys = indexer
    few = m <= LONG_CALL * count
    if few:
        k, v = widen(k), widen(v)
    parts = []
    for rows in cut_rows(n, keys, queries.shape[2], ROWS * queries.shape[2]):
        some = mask.rows(rows, n, m)
        stop = min(max(some.span(rows.stop - rows.start, m)[1], 1), m) if mask.causal else m
        visible = some.dense(rows.stop - rows.start, m, device=q.device)[:, 0, :, :stop]
        scores = score_keys(queries[:, rows], weights[:, rows], keys[:, :stop])
        selection = select_exactly(scores, visible, count)
        if few:
            run = partial(_attend_masked, selection[:, None])
            parts.append(recompute(run, widen(q[:, :, rows]), k[:, :, :stop], v[:, :, :stop]))
        else:
            parts.append(_attend_gathered(widen(q[:, :, rows]), k, v, *_list_keys(selection, count)))
    return torch.cat(parts, 2).to(q.dtype)


def attend_few(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, indexer: tuple[Tensor, Tensor, Tensor], count: int
) -> Tensor:
    """`attend_indexed` for few queries: no keys are read but those that the indexer selects."""
    n, m = q.shape[2], k.shape[2]
    visible = mask.dense(n, m, device=q.device)[:, 0]
    selection = select_exactly(score_keys(*indexer), visible, count)
    return _attend_gathered(widen(q), k, v, *_list_keys(selection, min(count, m))).to(q.dtype)


def _attend_masked(selection: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows without keys are zeros."""
    return attend_fused(q, k, v, allowed=selection).masked_fill(~selection.any(-1, keepdim=True), 0)


def _list_keys(selection: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The selected keys of each row in order, ``[B, N, count]``, and which of these exist."""
    numbers = torch.arange(selection.shape[-1], device=selection.device).expand_as(selection)
    places = torch.where(selection, selection.cumsum(-1) - 1, count)  # those of other keys are dropped
    index = numbers.new_zeros(*selection.shape[:2], count + 1).scatter(-1, places, numbers)[..., :count]
    return index, torch.arange(count, device=index.device) < selection.sum(-1, keepdim=True)


def _attend_gathered(q: Tensor, k: Tensor, v: Tensor, index: Tensor, exists: Tensor) -> Tensor:
    """``index, exists [B, N, count]``: the keys of each query, some queries at a time."""
    step = max(GATHERED // (k.shape[0] * k.shape[1] * index.shape[2] * (k.shape[3] + v.shape[3])), 1)
    parts = [
        recompute(partial(_attend_rows, index[:, first : first + step], exists[:, first : first + step]), rows, k, v)
        for first, rows in zip(range(0, q.shape[2], step), q.split(step, 2), strict=True)
    ]
    return torch.cat(parts, 2)


def _attend_rows(index: Tensor, exists: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    (batch, heads, n, width), kv_heads = q.shape, k.shape[1]
    places = index.flatten(1)[:, None].expand(-1, kv_heads, -1)
    keys, values = (widen(take_keys(x, places)).unflatten(2, (n, -1)) for x in (k, v))
    rows = q.unflatten(1, (kv_heads, -1)).transpose(2, 3)  # [B, Hkv, N, group, D]: keys are gathered once a group
    weights = masked_softmax(rows @ keys.mT * width**-0.5, exists[:, None, :, None])
    return (weights @ values).transpose(2, 3).reshape(batch, heads, n, -1)
