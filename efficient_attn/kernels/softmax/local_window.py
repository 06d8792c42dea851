"""Softmax over a window around each query's own center, with weights that decay with the distance.

    w_i = softmax of q_i . k_j / sqrt(D) over the keys with |j - c_i| <= W,    g(t) = exp(-2 t^2 / W^2)
    out_i = sum_j w_ij g(j - c_i) v_j,    dc_i = sum_j w_ij g(j - c_i) (4 / W^2) (j - c_i) grad_i . v_j

g is a Gaussian with a standard deviation of W / 2 (Luong et al. 2015, arXiv:1508.04025, local attention). Keys are
gathered for some queries at a time, so that memory grows with N, and with the window only for those queries.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from .softmax_kernel import SavedSoftmax, SoftmaxKernel, cut_range

BLOCK_ELEMENTS = 2**18  # numbers of the keys gathered at a time: a MiB of float32
STRETCH_ROWS = 128  # neighbours that share a stretch of keys


class LocalInputs(NamedTuple):
    """``q [B, H, N, D]``, ``k, v [B, Hkv, M, D or E]``, ``centres [B, H, N]``, all float32 or float64, and valid keys,
    bool ``[B, M]``."""

    q: Tensor
    k: Tensor
    v: Tensor
    centres: Tensor
    valid: Tensor | None


class LocalOptions(NamedTuple):
    """start: the position of the first query, which sees keys up to start if causal. self_centred: whether centers are
    the queries' own positions; neighbors then share their reads."""

    causal: bool
    start: int
    window: int
    self_centred: bool


class _GatheredWindows:
    """The keys and values in the windows of some queries, each window by itself: ``[G, R, W, D or E]``."""

    def __init__(self, k: Tensor, v: Tensor, centres: Tensor, window: int) -> None:
        offsets = torch.arange(2 * window + 1, device=k.device)
        self.positions = (centres - window).ceil().long()[..., None] + offsets
        self.indices = self.positions.clamp(0, k.shape[0] - 1)
        self.keys, self.values = k[self.indices], v[self.indices]

    @staticmethod
    def dot(x: Tensor, rows: Tensor) -> Tensor:
        """Products ``[G, R, W]`` of ``x [G, R, D]`` and the keys or values."""
        return (rows @ x[..., None])[..., 0]

    @staticmethod
    def weigh(weights: Tensor, rows: Tensor) -> Tensor:
        """Sums ``[G, R, D]`` of the keys or values by ``weights [G, R, W]``."""
        return (weights[..., None, :] @ rows)[..., 0, :]

    def add_weighted(self, total: Tensor, weights: Tensor, x: Tensor) -> None:
        """Add to a row for each key ``x [G, R, D]`` of every query by its weight."""
        index, rows = self.indices.flatten(), (weights[..., None] * x[..., None, :]).flatten(0, 2)
        if total.device.type == "cuda":  # index_add_ adds in an order that changes from call to call there
            total.index_put_((index,), rows, accumulate=True)
        else:
            total.index_add_(0, index, rows)


class _SharedStretch:
    """The keys and values in the windows of neighboring queries, a contiguous range: ``[W, D or E]``."""

    def __init__(self, k: Tensor, v: Tensor, centres: Tensor, window: int) -> None:
        first, last = (int(end) for end in centres.aminmax())
        low = min(max(first - window, 0), k.shape[0] - 1)
        self.span = slice(low, max(min(last + window + 1, k.shape[0]), low + 1))
        self.positions = self.indices = torch.arange(self.span.start, self.span.stop, device=k.device)
        self.keys, self.values = k[self.span], v[self.span]

    @staticmethod
    def dot(x: Tensor, rows: Tensor) -> Tensor:
        return x @ rows.mT

    @staticmethod
    def weigh(weights: Tensor, rows: Tensor) -> Tensor:
        return weights @ rows

    def add_weighted(self, total: Tensor, weights: Tensor, x: Tensor) -> None:
        total[self.span] += weights.flatten(0, 1).mT @ x.flatten(0, 1)


class _WindowScores(NamedTuple):
    """The keys of some queries of a head, distances from their centers, Gaussian weights, and scores ``[G, R, W]``."""

    windows: _GatheredWindows | _SharedStretch
    distance: Tensor
    bell: Tensor
    scores: Tensor


def _score_windows(head: LocalInputs, options: LocalOptions, first: int) -> _WindowScores:
    """The scores of ``q [G, R, D]`` of one head with ``k, v [M, D or E]``. first: the position of the first query."""
    q, k, v, centres, valid = head
    windows = (_SharedStretch if options.self_centred else _GatheredWindows)(k, v, centres, options.window)
    distance = (windows.positions - centres[..., None]).to(q.dtype)
    visible = (windows.positions >= 0) & (windows.positions < k.shape[0]) & (distance.abs() <= options.window)
    if options.causal:
        visible = visible & (windows.indices <= torch.arange(first, first + q.shape[1], device=q.device)[:, None])
    if valid is not None:
        visible = visible & valid[windows.indices]
    scores = (windows.dot(q, windows.keys) * q.shape[-1] ** -0.5).masked_fill_(~visible, float("-inf"))
    return _WindowScores(windows, distance, (distance.square() * (-2 / options.window**2)).exp_(), scores)


Block = tuple[int, int, slice, slice]  # a row of the batch, a key-value head, all of its groups, some queries


def _score_blocks(inputs: LocalInputs, options: LocalOptions) -> Iterator[tuple[Block, _WindowScores]]:
    """The queries that are processed together, as indices of ``[B, Hkv, G, N, ..]``, with their scores."""
    q, k, v, centres, valid = inputs
    q, centres = (x.unflatten(1, (k.shape[1], -1)) for x in (q, centres))
    row_elements = q.shape[2] * (2 * options.window + 1) * q.shape[4]
    block_rows = STRETCH_ROWS if options.self_centred else max(1, BLOCK_ELEMENTS // row_elements)
    for b, h, rows in product(range(k.shape[0]), range(k.shape[1]), cut_range(q.shape[3], block_rows)):
        block = b, h, slice(None), rows
        head = LocalInputs(q[block], k[b, h], v[b, h], centres[block], None if valid is None else valid[b])
        yield block, _score_windows(head, options, options.start + rows.start)


def _forward(inputs: LocalInputs, options: LocalOptions) -> tuple[Tensor, Tensor]:
    q, k, v, *_ = inputs
    out, all_lse = q.new_zeros(*q.shape[:3], v.shape[3]), q.new_zeros(q.shape[:3])
    grouped_out, grouped_lse = (x.unflatten(1, (k.shape[1], -1)) for x in (out, all_lse))
    for block, scored in _score_blocks(inputs, options):
        lse = scored.scores.logsumexp(-1)
        lse.masked_fill_(lse.isinf(), 0)  # of a query that sees no key: its weights are then zeros
        weights = (scored.scores - lse[..., None]).exp_() * scored.bell
        grouped_out[block] = scored.windows.weigh(weights, scored.windows.values)
        grouped_lse[block] = lse
    return out, all_lse


def _gradients(grad: Tensor, saved: SavedSoftmax[LocalInputs], options: LocalOptions) -> tuple[Tensor, ...]:
    (q, k, v, centres, _), out, lse = saved
    grad_q, grad_k, grad_v, grad_centres = (torch.zeros_like(x) for x in (q, k, v, centres))
    delta, scale = (grad * out).sum(-1), q.shape[-1] ** -0.5
    grouped_q, grouped_grad, grouped_lse, grouped_delta, grouped_grad_q, grouped_grad_centres = (
        x.unflatten(1, (k.shape[1], -1)) for x in (q, grad, lse, delta, grad_q, grad_centres)
    )
    for block, scored in _score_blocks(saved.inputs, options):
        (b, h, *_), windows = block, scored.windows
        block_grad = grouped_grad[block]
        weights = (scored.scores - grouped_lse[block][..., None]).exp_()
        faded = weights * scored.bell
        grad_faded = faded * windows.dot(block_grad, windows.values)
        grad_score = (grad_faded - weights * grouped_delta[block][..., None]) * scale
        grouped_grad_q[block] = windows.weigh(grad_score, windows.keys)
        grouped_grad_centres[block] = (grad_faded * scored.distance).sum(-1) * (4 / options.window**2)
        windows.add_weighted(grad_k[b, h], grad_score, grouped_q[block])
        windows.add_weighted(grad_v[b, h], faded, block_grad)
    return grad_q, grad_k, grad_v, grad_centres


# a query without keys in its window gets zeros
NAME = "local attention"
attend = SoftmaxKernel(NAME, LocalInputs, LocalOptions, _forward, _gradients, n_differentiated=4, op="local")
