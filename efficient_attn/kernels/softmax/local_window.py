"""Softmax over a window around each query's own center, with weights that decay with the distance.

Keys are gathered for some queries at a time, so that memory grows with N, and with the window only for those queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..custom_ops import is_traced
from ..derivatives import SoftmaxFunction, make_softmax_op

BLOCK_ELEMENTS = 2**18  # numbers of the keys gathered at a time: a MiB of float32
STRETCH_ROWS = 128  # neighbours that share a stretch of keys


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centres: Tensor,
    valid: Tensor | None,
    causal: bool,
    start: int,
    window: int,
    self_centred: bool,
) -> Tensor:
    """sum_j w_ij g(j - c_i) v_j, where w is softmax(q k^T / sqrt(D)) over the keys with ``abs(j - c_i) <= window`` and
    g(t) = exp(-2 t^2 / window^2), a Gaussian with a standard deviation of half the window.

    ``q [B, H, N, D]``, ``k, v [B, Hkv, M, D or E]``, ``centres [B, H, N]``, float32 or float64. valid: bool ``[B, M]``.
    start: the position of the first query, which sees keys up to start if causal. A query without keys in its window
    gets zeros. own: whether centers are the queries' own positions; neighbors then share their reads.
    """
    run = _local_op if is_traced(q) else LocalWindowFunction.apply
    return cast(tuple[Tensor, Tensor], run(q, k, v, centres, valid, causal, start, window, self_centred))[0]


class _GatheredWindows:
    """The keys and values in the windows of some queries, each window by itself: ``[G, R, W, D or E]``."""

    def __init__(self, k: Tensor, v: Tensor, centres: Tensor, window: int) -> None:
        offsets = torch.arange(2 * window + 1, device=k.device)
        self.positions = (centres - window).ceil().long()[..., None] + offsets
        self.indices = self.positions.clamp(0, k.shape[0] - 1)
        self.keys, self.values = k[self.indices], v[self.indices]

    def dot_keys(self, x: Tensor) -> Tensor:
        """Products ``[G, R, W]`` of ``x [G, R, D]`` and keys."""
        return (self.keys @ x[..., None])[..., 0]

    def dot_values(self, x: Tensor) -> Tensor:
        return (self.values @ x[..., None])[..., 0]

    def sum_keys(self, weights: Tensor) -> Tensor:
        return (weights[..., None, :] @ self.keys)[..., 0, :]

    def sum_values(self, weights: Tensor) -> Tensor:
        """Sums ``[G, R, E]`` of values by ``weights [G, R, W]``."""
        return (weights[..., None, :] @ self.values)[..., 0, :]

    def add_weighted(self, total: Tensor, weights: Tensor, x: Tensor) -> None:
        """Add to a row for each key ``x [G, R, D]`` of every query by its weight."""
        total.index_add_(0, self.indices.flatten(), (weights[..., None] * x[..., None, :]).flatten(0, 2))


class _SharedStretch:
    """The keys and values in the windows of neighboring queries, a contiguous range: ``[W, D or E]``."""

    def __init__(self, k: Tensor, v: Tensor, centres: Tensor, window: int) -> None:
        first, last = (int(end) for end in centres.aminmax())
        low = min(max(first - window, 0), k.shape[0] - 1)
        self.span = slice(low, max(min(last + window + 1, k.shape[0]), low + 1))
        self.positions = self.indices = torch.arange(self.span.start, self.span.stop, device=k.device)
        self.keys, self.values = k[self.span], v[self.span]

    def dot_keys(self, x: Tensor) -> Tensor:
        return x @ self.keys.mT

    def dot_values(self, x: Tensor) -> Tensor:
        return x @ self.values.mT

    def sum_keys(self, weights: Tensor) -> Tensor:
        return weights @ self.keys

    def sum_values(self, weights: Tensor) -> Tensor:
        return weights @ self.values

    def add_weighted(self, total: Tensor, weights: Tensor, x: Tensor) -> None:
        total[self.span] += weights.flatten(0, 1).mT @ x.flatten(0, 1)


class _WindowScores(NamedTuple):
    """The keys of some queries of a head, with distances from their centers, Gaussian weights, and scores ``[G, R,
    W]``."""

    keys: _GatheredWindows | _SharedStretch
    distance: Tensor
    bell: Tensor
    scores: Tensor


def _score_windows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centres: Tensor,
    valid: Tensor | None,
    causal: bool,
    first: int,
    window: int,
    self_centred: bool,
) -> _WindowScores:
    """The scores of the queries ``q [G, R, D]`` of one head with ``k, v [M, D or E]``; first: the position of the
    first."""
    keys = (_SharedStretch if self_centred else _GatheredWindows)(k, v, centres, window)
    distance = keys.positions - centres[..., None]
    visible = (keys.positions >= 0) & (keys.positions < k.shape[0]) & (distance.abs() <= window)
    if causal:
        visible = visible & (keys.indices <= torch.arange(first, first + q.shape[1], device=q.device)[:, None])
    if valid is not None:
        visible = visible & valid[keys.indices]
    scores = (keys.dot_keys(q) * q.shape[-1] ** -0.5).masked_fill_(~visible, float("-inf"))
    return _WindowScores(keys, distance, (distance.square() * (-2 / window**2)).exp_(), scores)


def _cut_queries(q: Tensor, k: Tensor, window: int, self_centred: bool) -> Iterator[tuple[int, int, slice]]:
    """Rows of the batch, key-value heads, and queries that are processed together."""
    group = q.shape[1] // k.shape[1]
    block_rows = STRETCH_ROWS if self_centred else max(1, BLOCK_ELEMENTS // (group * (2 * window + 1) * q.shape[3]))
    for b in range(k.shape[0]):
        for h in range(k.shape[1]):
            for first in range(0, q.shape[2], block_rows):
                yield b, h, slice(first, min(first + block_rows, q.shape[2]))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centres: Tensor,
    valid: Tensor | None,
    causal: bool,
    start: int,
    window: int,
    self_centred: bool,
) -> tuple[Tensor, Tensor]:
    out, all_lse = q.new_zeros(*q.shape[:3], v.shape[3]), q.new_zeros(q.shape[:3])
    grouped_q, grouped_centres, grouped_out, grouped_lse = (
        x.unflatten(1, (k.shape[1], -1)) for x in (q, centres, out, all_lse)
    )
    for b, h, rows in _cut_queries(q, k, window, self_centred):
        index, row_valid = (b, h, slice(None), rows), None if valid is None else valid[b]
        scored = _score_windows(
            grouped_q[index],
            k[b, h],
            v[b, h],
            grouped_centres[index],
            row_valid,
            causal,
            start + rows.start,
            window,
            self_centred,
        )
        lse = scored.scores.logsumexp(-1)
        lse.masked_fill_(lse.isinf(), 0)  # of a query that sees no key: its weights are then zeros
        grouped_out[index] = scored.keys.sum_values((scored.scores - lse[..., None]).exp_() * scored.bell)
        grouped_lse[index] = lse
    return out, all_lse


def _gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centres: Tensor,
    valid: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    start: int,
    window: int,
    self_centred: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_q, grad_k, grad_v, grad_centres = (torch.zeros_like(x) for x in (q, k, v, centres))
    delta, scale = (grad * out).sum(-1), q.shape[-1] ** -0.5
    parts = (q, centres, grad, lse, delta, grad_q, grad_centres)
    grouped_q, grouped_centres, grouped_grad, grouped_lse, grouped_delta, grouped_grad_q, grouped_grad_centres = (
        x.unflatten(1, (k.shape[1], -1)) for x in parts
    )
    for b, h, rows in _cut_queries(q, k, window, self_centred):
        index, row_valid = (b, h, slice(None), rows), None if valid is None else valid[b]
        x, block_grad = grouped_q[index], grouped_grad[index]
        scored = _score_windows(
            x, k[b, h], v[b, h], grouped_centres[index], row_valid, causal, start + rows.start, window, self_centred
        )
        weights = (scored.scores - grouped_lse[index][..., None]).exp_()
        faded = weights * scored.bell
        grad_faded = faded * scored.keys.dot_values(block_grad)
        grad_score = (grad_faded - weights * grouped_delta[index][..., None]) * scale
        grouped_grad_q[index] = scored.keys.sum_keys(grad_score)
        grouped_grad_centres[index] = (grad_faded * scored.distance).sum(-1) * (4 / window**2)
        scored.keys.add_weighted(grad_k[b, h], grad_score, x)
        scored.keys.add_weighted(grad_v[b, h], faded, block_grad)
    return grad_q, grad_k, grad_v, grad_centres


def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


class LocalWindowFunction(SoftmaxFunction):
    """``(q, k, v, centres, valid keys, causal, start, window, own)``."""

    kernel = "local attention"
    n_tensors, n_differentiated = 5, 4
    forward = staticmethod(_forward)
    gradients = staticmethod(_gradients)


_local_op: Any = make_softmax_op("local", _forward, _gradients, n_tensors=5, n_differentiated=4, shapes=_shapes)
