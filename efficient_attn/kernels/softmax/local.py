"""Softmax over a window around a centre that each query has of its own, its weights then fading with the distance.

Keys are gathered for some queries at a time, so that memory grows with N, and with the window for those queries alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..derivatives import SoftmaxFunction, make_softmax_op
from ..traced import traced

BLOCK = 2**18  # numbers of the keys that are gathered at once: a MiB of float32
ROWS = 128  # neighbours that share a stretch of keys


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centres: Tensor,
    valid: Tensor | None,
    causal: bool,
    start: int,
    window: int,
    own: bool,
) -> Tensor:
    """sum_j w_ij g(j - c_i) v_j, where w is softmax(q k^T / sqrt(D)) over the keys with ``abs(j - c_i) <= window`` and
    g(t) = exp(-2 t^2 / window^2), the bell of a deviation of half the window.

    ``q [B, H, N, D]``, ``k, v [B, Hkv, M, D or E]``, ``centres [B, H, N]``, float32 or float64. valid: bool ``[B, M]``.
    start: the position of the first query, which where it is causal sees keys up to start. A query that sees no key in
    its window gets zeros. own: whether centres are the queries' own positions; neighbours then share what is read.
    """
    run = _local if traced(q) else Local.apply
    return cast(tuple[Tensor, Tensor], run(q, k, v, centres, valid, causal, start, window, own))[0]


class _Gathered:
    """The keys and values in the windows of some queries, each window by itself: ``[G, R, W, D or E]``."""

    def __init__(self, k: Tensor, v: Tensor, centres: Tensor, window: int) -> None:
        offsets = torch.arange(2 * window + 1, device=k.device)
        self.wanted = (centres - window).ceil().long()[..., None] + offsets
        self.places = self.wanted.clamp(0, k.shape[0] - 1)
        self.keys, self.values = k[self.places], v[self.places]

    def ask_keys(self, x: Tensor) -> Tensor:
        """Products ``[G, R, W]`` of ``x [G, R, D]`` and keys."""
        return (self.keys @ x[..., None])[..., 0]

    def ask_values(self, x: Tensor) -> Tensor:
        return (self.values @ x[..., None])[..., 0]

    def mix_keys(self, weights: Tensor) -> Tensor:
        return (weights[..., None, :] @ self.keys)[..., 0, :]

    def mix_values(self, weights: Tensor) -> Tensor:
        """Sums ``[G, R, E]`` of values by ``weights [G, R, W]``."""
        return (weights[..., None, :] @ self.values)[..., 0, :]

    def add(self, total: Tensor, weights: Tensor, x: Tensor) -> None:
        """Add to a row for each key ``x [G, R, D]`` of every query by its weight."""
        total.index_add_(0, self.places.flatten(), (weights[..., None] * x[..., None, :]).flatten(0, 2))


class _Stretch:
    """The keys and values in the windows of neighbours, which lie side by side: a stretch of them, ``[W, D or E]``."""

    def __init__(self, k: Tensor, v: Tensor, centres: Tensor, window: int) -> None:
        first, last = (int(end) for end in centres.aminmax())
        low = min(max(first - window, 0), k.shape[0] - 1)
        self.at = slice(low, max(min(last + window + 1, k.shape[0]), low + 1))
        self.wanted = self.places = torch.arange(self.at.start, self.at.stop, device=k.device)
        self.keys, self.values = k[self.at], v[self.at]

    def ask_keys(self, x: Tensor) -> Tensor:
        return x @ self.keys.mT

    def ask_values(self, x: Tensor) -> Tensor:
        return x @ self.values.mT

    def mix_keys(self, weights: Tensor) -> Tensor:
        return weights @ self.keys

    def mix_values(self, weights: Tensor) -> Tensor:
        return weights @ self.values

    def add(self, total: Tensor, weights: Tensor, x: Tensor) -> None:
        total[self.at] += weights.flatten(0, 1).mT @ x.flatten(0, 1)


class _Seen(NamedTuple):
    """What some queries of a head see, with distances from their centres, the bell there, and scores ``[G, R, W]``."""

    rows: _Gathered | _Stretch
    away: Tensor
    bell: Tensor
    scores: Tensor


def _look(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centres: Tensor,
    valid: Tensor | None,
    causal: bool,
    first: int,
    window: int,
    own: bool,
) -> _Seen:
    """What the queries ``q [G, R, D]`` of one head see of ``k, v [M, D or E]``; first: the position of the first."""
    rows = (_Stretch if own else _Gathered)(k, v, centres, window)
    away = rows.wanted - centres[..., None]
    seen = (rows.wanted >= 0) & (rows.wanted < k.shape[0]) & (away.abs() <= window)
    if causal:
        seen = seen & (rows.places <= torch.arange(first, first + q.shape[1], device=q.device)[:, None])
    if valid is not None:
        seen = seen & valid[rows.places]
    scores = (rows.ask_keys(q) * q.shape[-1] ** -0.5).masked_fill_(~seen, float("-inf"))
    return _Seen(rows, away, (away.square() * (-2 / window**2)).exp_(), scores)


def _cut(q: Tensor, k: Tensor, window: int, own: bool) -> Iterator[tuple[int, int, slice]]:
    """Rows of the batch, key-value heads, and queries that are worked out at once."""
    group = q.shape[1] // k.shape[1]
    at_once = ROWS if own else max(1, BLOCK // (group * (2 * window + 1) * q.shape[3]))
    for b in range(k.shape[0]):
        for h in range(k.shape[1]):
            for first in range(0, q.shape[2], at_once):
                yield b, h, slice(first, min(first + at_once, q.shape[2]))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centres: Tensor,
    valid: Tensor | None,
    causal: bool,
    start: int,
    window: int,
    own: bool,
) -> tuple[Tensor, Tensor]:
    out, sums = q.new_zeros(*q.shape[:3], v.shape[3]), q.new_zeros(q.shape[:3])
    grouped, at, outs, lses = (x.unflatten(1, (k.shape[1], -1)) for x in (q, centres, out, sums))
    for b, h, rows in _cut(q, k, window, own):
        these, of_row = (b, h, slice(None), rows), None if valid is None else valid[b]
        found = _look(grouped[these], k[b, h], v[b, h], at[these], of_row, causal, start + rows.start, window, own)
        lse = found.scores.logsumexp(-1)
        lse.masked_fill_(lse.isinf(), 0)  # of a query that sees no key: its weights are then zeros
        outs[these] = found.rows.mix_values((found.scores - lse[..., None]).exp_() * found.bell)
        lses[these] = lse
    return out, sums


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
    own: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_q, by_k, by_v, by_centres = (torch.zeros_like(x) for x in (q, k, v, centres))
    dots, scale = (grad * out).sum(-1), q.shape[-1] ** -0.5
    parts = (q, centres, grad, lse, dots, by_q, by_centres)
    queries, at, grads, lses, owns, of_q, of_centres = (x.unflatten(1, (k.shape[1], -1)) for x in parts)
    for b, h, rows in _cut(q, k, window, own):
        these, of_row = (b, h, slice(None), rows), None if valid is None else valid[b]
        x, above = queries[these], grads[these]
        found = _look(x, k[b, h], v[b, h], at[these], of_row, causal, start + rows.start, window, own)
        weights = (found.scores - lses[these][..., None]).exp_()
        faded = weights * found.bell
        by_faded = faded * found.rows.ask_values(above)
        by_score = (by_faded - weights * owns[these][..., None]) * scale
        of_q[these] = found.rows.mix_keys(by_score)
        of_centres[these] = (by_faded * found.away).sum(-1) * (4 / window**2)
        found.rows.add(by_k[b, h], by_score, x)
        found.rows.add(by_v[b, h], faded, above)
    return by_q, by_k, by_v, by_centres


def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


class Local(SoftmaxFunction):
    """``(q, k, v, centres, valid keys, causal, start, window, own)``."""

    kernel = "local attention"
    tensors, differentiated = 5, 4
    forward = staticmethod(_forward)
    gradients = staticmethod(_gradients)


_local: Any = make_softmax_op("local", _forward, _gradients, tensors=5, differentiated=4, shapes=_shapes)
