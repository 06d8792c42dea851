"""Additive attention in blocks of queries and keys: softmax of u . tanh(x_i + y_j), of which no more than a block's
sums are in memory at once, and a row of scores for each query of a block.

tanh(a + b) is 1 - 2 r, where r = 1 / (1 + e^2a e^2b): an exponential a query and a key instead of one a pair, and of
each pair one multiply-add and one division are left. The 1 moves all scores of a query alike, which no softmax sees.
Of a query or key whose exponentials leave the floats' range, r is the sigmoid of the sum: slower, right for any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..derivatives import SoftmaxFunction, make_softmax_op
from ..traced import traced

BLOCK = 2**18  # numbers of a block's r: a MiB of float32, which a core's cache about holds
KEYS = 32  # of a block
FEW = 2**17  # sums of a whole call that need no blocks
REACH = {torch.float32: 80.0, torch.float64: 600.0}  # exponents whose exponentials are still normal numbers


def attend(x: Tensor, y: Tensor, v: Tensor, u: Tensor, valid: Tensor | None, causal: bool, start: int) -> Tensor:
    """softmax(u . tanh(x_i + y_j)) v, for ``x [B, H, N, A]``, ``y [B, Hkv, M, A]``, ``v [B, Hkv, M, E]`` and
    ``u [Hkv, A]``, float32 or float64. valid: bool, ``[B, M]``. start: the position of the first query; query i sees
    keys up to start + i where it is causal. A query that sees none gets zeros."""
    if not traced(x) and x.numel() * y.shape[2] <= FEW and _all_see(valid, causal, start):
        return _attend_few(x, y, v, u, valid, causal, start)
    run = _additive if traced(x) else Additive.apply
    return cast(tuple[Tensor, Tensor], run(x, y, v, u, valid, causal, start))[0]


def _all_see(valid: Tensor | None, causal: bool, start: int) -> bool:
    """Whether no query is without keys, for sure."""
    if causal and start < 0:
        return False
    return valid is None or bool((valid[:, 0] if causal else valid.any(-1)).all())


def _attend_few(x: Tensor, y: Tensor, v: Tensor, u: Tensor, valid: Tensor | None, causal: bool, start: int) -> Tensor:
    """The same where all sums together are few, as in steps of many short rows: at once, by torch's own gradients."""
    groups, n, m = y.shape[1], x.shape[2], y.shape[2]
    sums = (x.unflatten(1, (groups, -1))[..., None, :] + y[:, :, None, None]).tanh()  # B, Hkv, G, N, M, A
    scores = (sums @ u[:, None, None, :, None])[..., 0]
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None, None, None], float("-inf"))
    if causal and start < m - 1:
        i, j = torch.arange(start, start + n, device=x.device), torch.arange(m, device=x.device)
        scores = scores.masked_fill(j > i[:, None], float("-inf"))
    return (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2)


class _Head(NamedTuple):
    """What one key-value head brings: ``x [G, N, A]``, ``y [M, A]``, twice the sums' parts; v, -2 u, and valid keys.

    far_x, far_y: which queries and keys have numbers whose exponentials leave the floats' range, where any has.
    """

    x: Tensor
    y: Tensor
    v: Tensor
    u: Tensor
    valid: Tensor | None
    exp_x: Tensor
    exp_y: Tensor
    far_x: Tensor | None
    far_y: Tensor | None


def _split_heads(x: Tensor, y: Tensor, v: Tensor, u: Tensor, valid: Tensor | None) -> Iterator[tuple[int, int, _Head]]:
    """Every row of the batch and key-value head, with what they bring."""
    rows, keys, reach = (2 * x).unflatten(1, (y.shape[1], -1)), 2 * y, REACH[x.dtype]
    exp_rows, exp_keys = rows.exp(), keys.exp()
    for b in range(y.shape[0]):
        for h in range(y.shape[1]):
            far_x, far_y = (rows[b, h].abs() > reach).any(-1).any(0), (keys[b, h].abs() > reach).any(-1)
            yield (
                b,
                h,
                _Head(
                    x=rows[b, h],
                    y=keys[b, h],
                    v=v[b, h],
                    u=-2 * u[h],
                    valid=None if valid is None else valid[b],
                    exp_x=exp_rows[b, h],
                    exp_y=exp_keys[b, h],
                    far_x=far_x if far_x.any() else None,
                    far_y=far_y if far_y.any() else None,
                ),
            )


def _cut(size: int, at_once: int) -> Iterator[slice]:
    return (slice(first, min(first + at_once, size)) for first in range(0, size, at_once))


class _Blocks:
    """The blocks of a head's queries, each with the number of keys that any of them may see, and of those keys."""

    def __init__(self, head: _Head, causal: bool, start: int) -> None:
        self.head, self.causal, self.start = head, causal, start
        self.at_once = max(1, BLOCK // (KEYS * head.x.shape[0] * head.x.shape[2]))
        self.one = head.x.new_ones(())
        self.room = head.x.new_empty(head.x.shape[0] * self.at_once * KEYS * head.x.shape[2])

    def rows(self) -> Iterator[tuple[slice, int]]:
        m = self.head.y.shape[0]
        for rows in _cut(self.head.x.shape[1], self.at_once):
            yield rows, max(0, min(self.start + rows.stop, m)) if self.causal else m

    def reciprocals(self, rows: slice, keys: slice) -> Tensor:
        """r ``[G, rows, keys, A]``, in room that the next block's take.

        Which form a pair gets depends on its own query and key alone, so that no later key changes a bit of it.
        """
        head = self.head
        x, y = head.exp_x[:, rows, None], head.exp_y[keys]
        shape = *x.shape[:2], *y.shape
        out = self.room[: shape[0] * shape[1] * shape[2] * shape[3]].view(shape)
        torch.addcmul(self.one, x, y, out=out).reciprocal_()
        if head.far_y is not None and (far := head.far_y[keys]).any():
            out[:, :, far] = (-head.x[:, rows, None] - head.y[keys][far]).sigmoid_()
        if head.far_x is not None and (far := head.far_x[rows]).any():
            out[:, far] = (-head.x[:, rows][:, far, None] - head.y[keys]).sigmoid_()
        return out

    def hide(self, scores: Tensor, rows: slice, keys: slice) -> Tensor:
        """Minus infinity where a query may not see a key."""
        if self.head.valid is not None:
            scores.masked_fill_(~self.head.valid[keys], float("-inf"))
        if self.causal and self.start + rows.start < keys.stop - 1:
            i = torch.arange(self.start + rows.start, self.start + rows.stop, device=scores.device)
            j = torch.arange(keys.start, keys.stop, device=scores.device)
            scores.masked_fill_(j > i[:, None], float("-inf"))
        return scores


def _forward(
    x: Tensor, y: Tensor, v: Tensor, u: Tensor, valid: Tensor | None, causal: bool, start: int
) -> tuple[Tensor, Tensor]:
    out, sums = x.new_zeros(*x.shape[:3], v.shape[3]), x.new_zeros(x.shape[:3])
    outs, lses = (part.unflatten(1, (y.shape[1], -1)) for part in (out, sums))
    for b, h, head in _split_heads(x, y, v, u, valid):
        blocks = _Blocks(head, causal, start)
        for rows, last in blocks.rows():
            if not last:
                continue
            scores = x.new_empty(head.x.shape[0], rows.stop - rows.start, last)
            for keys in _cut(last, KEYS):
                scores[..., keys] = blocks.reciprocals(rows, keys) @ head.u
            blocks.hide(scores, rows, slice(0, last))
            lse = scores.logsumexp(-1)
            lse.masked_fill_(lse.isinf(), 0)  # of a query that sees no key: its weights are then zeros
            outs[b, h, :, rows] = (scores - lse[..., None]).exp_() @ head.v[:last]
            lses[b, h, :, rows] = lse
    return out, sums


def _gradients(
    grad: Tensor,
    x: Tensor,
    y: Tensor,
    v: Tensor,
    u: Tensor,
    valid: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    start: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    by_x, by_y, by_v, by_u = (torch.zeros_like(part) for part in (x, y, v, u))
    groups, own = y.shape[1], (grad * out).sum(-1)
    of_x, grads, lses, owns = (part.unflatten(1, (groups, -1)) for part in (by_x, grad, lse, own))
    for b, h, head in _split_heads(x, y, v, u, valid):
        blocks = _Blocks(head, causal, start)
        for rows, last in blocks.rows():
            above, lse_, own_ = grads[b, h, :, rows], lses[b, h, :, rows, None], owns[b, h, :, rows, None]
            for keys in _cut(last, KEYS):
                r = blocks.reciprocals(rows, keys)
                weights = (blocks.hide(r @ head.u, rows, keys) - lse_).exp_()
                by_score = weights * (above @ head.v[keys].mT - own_)
                by_v[b, h, keys] += weights.flatten(0, 1).mT @ above.flatten(0, 1)
                by_u[h] += by_score.flatten() @ r.flatten(0, 2)
                slopes = torch.addcmul(r, r, r, value=-1).mul_(by_score[..., None])  # dr/dx = -2 (r - r^2)
                of_x[b, h, :, rows] += slopes.sum(2)
                by_y[b, h, keys] += slopes.sum((0, 1))
    scale = 4 * u[:, None]
    by_x *= scale.repeat_interleave(x.shape[1] // groups, 0)
    return by_x, by_y.mul_(scale), by_v, by_u.mul_(-2)


def _shapes(x: Tensor, y: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:3], v.shape[3]), x.new_empty(x.shape[:3])


class Additive(SoftmaxFunction):
    """``(x, y, v, u, valid keys, causal, start)``."""

    kernel = "additive attention"
    tensors, differentiated = 5, 4
    forward = staticmethod(_forward)
    gradients = staticmethod(_gradients)


_additive: Any = make_softmax_op("additive", _forward, _gradients, tensors=5, differentiated=4, shapes=_shapes)
