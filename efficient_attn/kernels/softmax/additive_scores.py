"""Additive attention in blocks of queries and keys, with the sums of only one block in memory at a time, and a row of
scores for each query of a block.

    s_ij = u . tanh(x_i + y_j) = u . (1 - 2 r_ij),    r_ij = 1 / (1 + e^(2 x_i) e^(2 y_j))  [A]

One exponential for each query and key instead of each pair; one multiply-add and one division for each pair remain. The
1 shifts all scores of a query equally, to which softmax is invariant. For a query or key whose exponentials overflow, r
is the sigmoid of the sum: slower, correct for any size.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ..custom_ops import is_traced
from .softmax_kernel import SavedSoftmax, SoftmaxKernel, cut_range

BLOCK_ELEMENTS = 2**18  # numbers of a block's r: a MiB of float32, about a core's cache
BLOCK_KEYS = 32  # at least, of a block
MAX_UNBLOCKED_SUMS = 2**17  # sums of a whole call that need no blocks
FEW_ROWS = 8  # of a key, for which sigmoids of sums are faster: 2.5 times at 1, 1.1 at 8, .97 at 12 (Emerald Rapids)
MAX_EXPONENT = {torch.float32: 80.0, torch.float64: 600.0}  # exponents whose exponentials are normal numbers


class AdditiveInputs(NamedTuple):
    """``x [B, H, N, A]``, ``y [B, Hkv, M, A]``, ``v [B, Hkv, M, E]`` and ``u [Hkv, A]``, float32 or float64, and the
    valid keys, bool ``[B, M]``."""

    x: Tensor
    y: Tensor
    v: Tensor
    u: Tensor
    valid: Tensor | None


class AdditiveOptions(NamedTuple):
    """start: the position of the first query; query i sees keys up to start + i if causal."""

    causal: bool
    start: int


def attend(inputs: AdditiveInputs, options: AdditiveOptions) -> Tensor:
    """softmax(u . tanh(x_i + y_j)) v. A query that sees no key gets zeros."""
    x, y = inputs.x, inputs.y
    # all sums are few in steps of many short rows: then at once, with torch's gradients
    if not is_traced(x) and x.numel() * y.shape[2] <= MAX_UNBLOCKED_SUMS and _every_query_sees_keys(inputs, options):
        return _attend_unblocked(inputs, options)
    return ADDITIVE(inputs, options)


def _every_query_sees_keys(inputs: AdditiveInputs, options: AdditiveOptions) -> bool:
    """Whether no query is without keys, for sure."""
    valid, first_is_seen = inputs.valid, not options.causal or options.start >= 0
    return first_is_seen and (valid is None or bool((valid[:, 0] if options.causal else valid.any(-1)).all()))


def _attend_unblocked(inputs: AdditiveInputs, options: AdditiveOptions) -> Tensor:
    x, y, v, u, valid = inputs
    sums = (x.unflatten(1, (y.shape[1], -1))[..., None, :] + y[:, :, None, None]).tanh()  # B, Hkv, G, N, M, A
    scores = (sums @ u[:, None, None, :, None])[..., 0]
    keys, visible = slice(0, y.shape[2]), None if valid is None else valid[:, None, None, None]
    scores = _mask_scores(scores, visible, options, slice(0, x.shape[2]), keys)
    return (scores.softmax(-1) @ v[:, :, None]).flatten(1, 2)


def _mask_scores(scores: Tensor, valid: Tensor | None, options: AdditiveOptions, rows: slice, keys: slice) -> Tensor:
    """``scores [.., rows, keys]`` with minus infinity where a query may not see a key."""
    if valid is not None:
        scores = scores.masked_fill(~valid, float("-inf"))
    first = options.start + rows.start
    if options.causal and first < keys.stop - 1:
        i = torch.arange(first, options.start + rows.stop, device=scores.device)
        j = torch.arange(keys.start, keys.stop, device=scores.device)
        scores = scores.masked_fill(j > i[:, None], float("-inf"))
    return scores


class _HeadBlocks:
    """One key-value head in blocks of queries and keys: ``x [G, N, A]`` and ``y [M, A]``, twice the sums' parts, their
    exponentials unless rows are few, v, -2 u, and the valid keys. far_x, far_y: queries and keys whose exponentials
    overflow, if any."""

    def __init__(self, head: AdditiveInputs, options: AdditiveOptions) -> None:
        self.x, self.y, self.v, self.u, self.valid = head
        self.options, self.exps, self.far_x, self.far_y = options, None, None, None
        reach, (groups, n, width) = MAX_EXPONENT[self.x.dtype], self.x.shape
        if groups * n > FEW_ROWS:
            self.exps = self.x.exp(), self.y.exp()
            far_x, far_y = (self.x.abs() > reach).any(-1).any(0), (self.y.abs() > reach).any(-1)
            self.far_x, self.far_y = (far if far.any() else None for far in (far_x, far_y))
        self.block_rows = max(1, min(n, BLOCK_ELEMENTS // (BLOCK_KEYS * groups * width)))
        block_keys = max(BLOCK_KEYS, BLOCK_ELEMENTS // (self.block_rows * groups * width))  # more in a decode step
        self.block_keys = max(1, min(self.y.shape[0], block_keys))
        self.unit = self.x.new_ones(())
        self.buffer = self.x.new_empty(groups * self.block_rows * self.block_keys * width)

    def rows(self) -> Iterator[tuple[slice, int]]:
        """Blocks of queries, each with the number of keys that any of them may see."""
        m = self.y.shape[0]
        for rows in cut_range(self.x.shape[1], self.block_rows):
            last = self.options.start + rows.stop if self.options.causal else m
            yield rows, max(0, min(last, m))

    def reciprocals(self, rows: slice, keys: slice) -> Tensor:
        """r ``[G, rows, keys, A]``, in memory that the next block reuses. The formula of a pair depends only on its own
        query and key, so that later keys change nothing."""
        x, y = self.x[:, rows, None], self.y[keys]
        shape = *x.shape[:2], *y.shape
        out = self.buffer[: shape[0] * shape[1] * shape[2] * shape[3]].view(shape)
        if self.exps is None:
            return torch.sub(-x, y, out=out).sigmoid_()
        torch.addcmul(self.unit, self.exps[0][:, rows, None], self.exps[1][keys], out=out).reciprocal_()
        if self.far_y is not None and (far := self.far_y[keys]).any():
            out[:, :, far] = (-x - y[far]).sigmoid_()
        if self.far_x is not None and (far := self.far_x[rows]).any():
            out[:, far] = (-x[:, far] - y).sigmoid_()
        return out

    def mask_scores(self, scores: Tensor, rows: slice, keys: slice) -> Tensor:
        """`_mask_scores` with the head's padding."""
        valid = None if self.valid is None else self.valid[keys]
        return _mask_scores(scores, valid, self.options, rows, keys)


def _split_heads(inputs: AdditiveInputs, options: AdditiveOptions) -> Iterator[tuple[int, int, _HeadBlocks]]:
    x, y, v, u, valid = inputs
    rows, keys = (2 * x).unflatten(1, (y.shape[1], -1)), 2 * y
    for b, h in product(range(y.shape[0]), range(y.shape[1])):
        head = AdditiveInputs(rows[b, h], keys[b, h], v[b, h], -2 * u[h], None if valid is None else valid[b])
        yield b, h, _HeadBlocks(head, options)


def _forward(inputs: AdditiveInputs, options: AdditiveOptions) -> tuple[Tensor, Tensor]:
    x, y, v, *_ = inputs
    out, all_lse = x.new_zeros(*x.shape[:3], v.shape[3]), x.new_zeros(x.shape[:3])
    grouped_out, grouped_lse = (part.unflatten(1, (y.shape[1], -1)) for part in (out, all_lse))
    for b, h, blocks in _split_heads(inputs, options):
        for rows, key_count in blocks.rows():
            if not key_count:
                continue
            scores = x.new_empty(blocks.x.shape[0], rows.stop - rows.start, key_count)
            for keys in cut_range(key_count, blocks.block_keys):
                scores[..., keys] = blocks.reciprocals(rows, keys) @ blocks.u
            scores = blocks.mask_scores(scores, rows, slice(0, key_count))
            lse = scores.logsumexp(-1)
            lse.masked_fill_(lse.isinf(), 0)  # of a query that sees no key: its weights are then zeros
            grouped_out[b, h, :, rows] = (scores - lse[..., None]).exp_() @ blocks.v[:key_count]
            grouped_lse[b, h, :, rows] = lse
    return out, all_lse


def _gradients(grad: Tensor, saved: SavedSoftmax[AdditiveInputs], options: AdditiveOptions) -> tuple[Tensor, ...]:
    (x, y, v, u, _), out, lse = saved
    grad_x, grad_y, grad_v, grad_u = (torch.zeros_like(part) for part in (x, y, v, u))
    groups, delta = y.shape[1], (grad * out).sum(-1)
    grouped_grad_x, grouped_grad, grouped_lse, grouped_delta = (
        part.unflatten(1, (groups, -1)) for part in (grad_x, grad, lse, delta)
    )
    for b, h, blocks in _split_heads(saved.inputs, options):
        for rows, key_count in blocks.rows():
            block_lse, block_delta = (x[b, h, :, rows, None] for x in (grouped_lse, grouped_delta))
            block_grad = grouped_grad[b, h, :, rows]
            for keys in cut_range(key_count, blocks.block_keys):
                r = blocks.reciprocals(rows, keys)
                weights = (blocks.mask_scores(r @ blocks.u, rows, keys) - block_lse).exp_()
                grad_score = weights * (block_grad @ blocks.v[keys].mT - block_delta)
                grad_v[b, h, keys] += weights.flatten(0, 1).mT @ block_grad.flatten(0, 1)
                grad_u[h] += grad_score.flatten() @ r.flatten(0, 2)
                slopes = torch.addcmul(r, r, r, value=-1).mul_(grad_score[..., None])  # dr/dx = -2 (r - r^2)
                grouped_grad_x[b, h, :, rows] += slopes.sum(2)
                grad_y[b, h, keys] += slopes.sum((0, 1))
    scale = 4 * u[:, None]
    grad_x *= scale.repeat_interleave(x.shape[1] // groups, 0)
    return grad_x, grad_y.mul_(scale), grad_v, grad_u.mul_(-2)


ADDITIVE = SoftmaxKernel(
    "additive attention", AdditiveInputs, AdditiveOptions, _forward, _gradients, n_differentiated=4, op="additive"
)
