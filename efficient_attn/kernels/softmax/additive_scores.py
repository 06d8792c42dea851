"""Additive attention in blocks of queries and keys: softmax of u . tanh(x_i + y_j), with the sums of only one block in
memory at a time, and a row of scores for each query of a block.

tanh(a + b) is 1 - 2 r, where r = 1 / (1 + e^2a e^2b): one exponential for each query and key instead of each pair; one
multiply-add and one division for each pair remain. The 1 shifts all scores of a query equally, to which softmax is
invariant. For a query or key whose exponentials overflow, r is the sigmoid of the sum: slower, correct for any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..custom_ops import is_traced
from ..derivatives import SoftmaxFunction, make_softmax_op

BLOCK_ELEMENTS = 2**18  # numbers of a block's r: a MiB of float32, about a core's cache
BLOCK_KEYS = 32  # of a block
MAX_UNBLOCKED_SUMS = 2**17  # sums of a whole call that need no blocks
MAX_EXPONENT = {torch.float32: 80.0, torch.float64: 600.0}  # exponents whose exponentials are normal numbers


def attend(x: Tensor, y: Tensor, v: Tensor, u: Tensor, valid: Tensor | None, causal: bool, start: int) -> Tensor:
    """softmax(u . tanh(x_i + y_j)) v, for ``x [B, H, N, A]``, ``y [B, Hkv, M, A]``, ``v [B, Hkv, M, E]`` and
    ``u [Hkv, A]``, float32 or float64. valid: bool, ``[B, M]``. start: the position of the first query; query i sees
    keys up to start + i where it is causal. A query that sees none gets zeros."""
    if (
        not is_traced(x)
        and x.numel() * y.shape[2] <= MAX_UNBLOCKED_SUMS
        and _every_query_sees_keys(valid, causal, start)
    ):
        return _attend_few(x, y, v, u, valid, causal, start)
    run = _additive_op if is_traced(x) else AdditiveFunction.apply
    return cast(tuple[Tensor, Tensor], run(x, y, v, u, valid, causal, start))[0]


def _every_query_sees_keys(valid: Tensor | None, causal: bool, start: int) -> bool:
    """Whether no query is without keys, for sure."""
    if causal and start < 0:
        return False
    return valid is None or bool((valid[:, 0] if causal else valid.any(-1)).all())


def _attend_few(x: Tensor, y: Tensor, v: Tensor, u: Tensor, valid: Tensor | None, causal: bool, start: int) -> Tensor:
    """The same if all sums together are few, as in steps of many short rows: at once, with torch's gradients."""
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
    """The inputs of one key-value head: ``x [G, N, A]``, ``y [M, A]``, twice the sums' parts; v, -2 u, and valid keys.

    far_x, far_y: queries and keys with numbers whose exponentials overflow, if any.
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
    """Every row of the batch and key-value head, with its inputs."""
    rows, keys, reach = (2 * x).unflatten(1, (y.shape[1], -1)), 2 * y, MAX_EXPONENT[x.dtype]
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


def _cut_range(size: int, at_once: int) -> Iterator[slice]:
    return (slice(first, min(first + at_once, size)) for first in range(0, size, at_once))


class _HeadBlocks:
    """The blocks of a head's queries, each with the number of keys that any of them may see, and blocks of those
    keys."""

    def __init__(self, head: _Head, causal: bool, start: int) -> None:
        self.head, self.causal, self.start = head, causal, start
        self.block_rows = max(1, BLOCK_ELEMENTS // (BLOCK_KEYS * head.x.shape[0] * head.x.shape[2]))
        self.unit = head.x.new_ones(())
        self.buffer = head.x.new_empty(head.x.shape[0] * self.block_rows * BLOCK_KEYS * head.x.shape[2])

    def rows(self) -> Iterator[tuple[slice, int]]:
        m = self.head.y.shape[0]
        for rows in _cut_range(self.head.x.shape[1], self.block_rows):
            yield rows, max(0, min(self.start + rows.stop, m)) if self.causal else m

    def reciprocals(self, rows: slice, keys: slice) -> Tensor:
        """r ``[G, rows, keys, A]``, in memory that the next block reuses.

        The formula of a pair depends only on its own query and key, so that later keys change nothing.
        """
        head = self.head
        x, y = head.exp_x[:, rows, None], head.exp_y[keys]
        shape = *x.shape[:2], *y.shape
        out = self.buffer[: shape[0] * shape[1] * shape[2] * shape[3]].view(shape)
        torch.addcmul(self.unit, x, y, out=out).reciprocal_()
        if head.far_y is not None and (far := head.far_y[keys]).any():
            out[:, :, far] = (-head.x[:, rows, None] - head.y[keys][far]).sigmoid_()
        if head.far_x is not None and (far := head.far_x[rows]).any():
            out[:, far] = (-head.x[:, rows][:, far, None] - head.y[keys]).sigmoid_()
        return out

    def mask_scores(self, scores: Tensor, rows: slice, keys: slice) -> Tensor:
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
    out, all_lse = x.new_zeros(*x.shape[:3], v.shape[3]), x.new_zeros(x.shape[:3])
    grouped_out, grouped_lse = (part.unflatten(1, (y.shape[1], -1)) for part in (out, all_lse))
    for b, h, head in _split_heads(x, y, v, u, valid):
        blocks = _HeadBlocks(head, causal, start)
        for rows, key_count in blocks.rows():
            if not key_count:
                continue
            scores = x.new_empty(head.x.shape[0], rows.stop - rows.start, key_count)
            for keys in _cut_range(key_count, BLOCK_KEYS):
                scores[..., keys] = blocks.reciprocals(rows, keys) @ head.u
            blocks.mask_scores(scores, rows, slice(0, key_count))
            lse = scores.logsumexp(-1)
            lse.masked_fill_(lse.isinf(), 0)  # of a query that sees no key: its weights are then zeros
            grouped_out[b, h, :, rows] = (scores - lse[..., None]).exp_() @ head.v[:key_count]
            grouped_lse[b, h, :, rows] = lse
    return out, all_lse


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
    grad_x, grad_y, grad_v, grad_u = (torch.zeros_like(part) for part in (x, y, v, u))
    groups, delta = y.shape[1], (grad * out).sum(-1)
    grouped_grad_x, grouped_grad, grouped_lse, grouped_delta = (
        part.unflatten(1, (groups, -1)) for part in (grad_x, grad, lse, delta)
    )
    for b, h, head in _split_heads(x, y, v, u, valid):
        blocks = _HeadBlocks(head, causal, start)
        for rows, key_count in blocks.rows():
            block_grad, block_lse, block_delta = (
                grouped_grad[b, h, :, rows],
                grouped_lse[b, h, :, rows, None],
                grouped_delta[b, h, :, rows, None],
            )
            for keys in _cut_range(key_count, BLOCK_KEYS):
                r = blocks.reciprocals(rows, keys)
                weights = (blocks.mask_scores(r @ head.u, rows, keys) - block_lse).exp_()
                grad_score = weights * (block_grad @ head.v[keys].mT - block_delta)
                grad_v[b, h, keys] += weights.flatten(0, 1).mT @ block_grad.flatten(0, 1)
                grad_u[h] += grad_score.flatten() @ r.flatten(0, 2)
                slopes = torch.addcmul(r, r, r, value=-1).mul_(grad_score[..., None])  # dr/dx = -2 (r - r^2)
                grouped_grad_x[b, h, :, rows] += slopes.sum(2)
                grad_y[b, h, keys] += slopes.sum((0, 1))
    scale = 4 * u[:, None]
    grad_x *= scale.repeat_interleave(x.shape[1] // groups, 0)
    return grad_x, grad_y.mul_(scale), grad_v, grad_u.mul_(-2)


def _shapes(x: Tensor, y: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:3], v.shape[3]), x.new_empty(x.shape[:3])


class AdditiveFunction(SoftmaxFunction):
    """``(x, y, v, u, valid keys, causal, start)``."""

    kernel = "additive attention"
    n_tensors, n_differentiated = 5, 4
    forward = staticmethod(_forward)
    gradients = staticmethod(_gradients)


_additive_op: Any = make_softmax_op("additive", _forward, _gradients, n_tensors=5, n_differentiated=4, shapes=_shapes)
