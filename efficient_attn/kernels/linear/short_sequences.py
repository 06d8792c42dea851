"""Short sequences: all positions together, in as few torch calls as possible.

    causal: out = (X Y^T * w) V / divisor,  w_ij = e^(a_j - r_i) for keys up to i,  r_i the largest a so far, else 0
    bidirectional: out = X (Y^T V) / divisor                          X [Bh, G N, F],  Y [Bh, M, F],  V [Bh, M, E]

Cutting into stretches saves memory, of which a short call needs little, and costs more torch calls than its products
take time. Here batch and heads are cut, if there are many: models in training have many short sequences. Causal rows
are multiplied with all keys, which is cheapest for few keys. Features are recomputed in the backward pass, as for long
sequences.
"""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ..derivatives import KernelFunction, differentiate_once
from ..softmax.softmax_kernel import cut_range
from .linear_config import MAX_FEATURE_ELEMENTS, FeatureTape, KeyInputs, LinearConfig, SavedRows
from .sums import KERNEL, dot_rows, pair_gradients, relative_weights

MAX_LENGTH = 512  # positions on either side
MAX_LENGTH_CUT, MAX_LENGTH_WEIGHTED = 128, 64  # where lanes go group by group, and where keys have weights then


def is_short(config: LinearConfig, q: Tensor, k: Tensor, causal: bool, *, weighted: bool) -> bool:
    """Whether a call with queries ``q [Bh, G, N, D]`` and keys ``k [Bh, M, D]`` should use `attend_short`. weighted:
    whether keys have weights in addition to their features.

    What exists at a time, the features of a side or the products of a causal call, must fit the cache as a stretch
    does; many short lanes are processed in groups that do. That pays as long as a call's products are no more than a
    stretch's, and less with weights, which need a power each. C++ has its own implementation of causal calls.
    """
    n, m = q.shape[2], k.shape[1]
    if (config.native and causal) or torch.compiler.is_compiling():
        return False
    if config.decays and not (causal and 0 <= config.start <= m - n):
        return False  # weights are relative to a row's own position, which has to be that of a key
    if len(q) <= _count_lanes(config, q, k, causal):
        return max(n, m) <= (MAX_LENGTH_WEIGHTED if config.decays else MAX_LENGTH)
    return max(n, m) <= (MAX_LENGTH_WEIGHTED if weighted else MAX_LENGTH_CUT) and _count_lanes(config, q, k, causal) > 0


def _count_lanes(config: LinearConfig, q: Tensor, k: Tensor, causal: bool) -> int:
    """How many of the ``Bh`` lanes fit the cache together."""
    group, n, m = q.shape[1], q.shape[2], k.shape[1]
    features = group * max(n, m) * config.phi.width(k.shape[2])
    return MAX_FEATURE_ELEMENTS // max(1, features, group * n * m if causal else 0)


def _cut_lanes(config: LinearConfig, q: Tensor, k: Tensor, causal: bool) -> list[slice]:
    return list(cut_range(len(q), max(1, _count_lanes(config, q, k, causal))))


def attend_short(config: LinearConfig, q: Tensor, keys: KeyInputs, causal: bool) -> Tensor:
    """Linear attention ``[Bh, G, N, E]`` of a short call. causal: query i sees keys up to ``config.start + i``."""
    outputs = _ShortFunction.apply(config, causal, q, *keys, *config.parameters)
    return cast(tuple[Tensor, Tensor | None], outputs)[0]


class _ShortFunction(KernelFunction):
    @staticmethod
    def forward(
        config: LinearConfig, causal: bool, q: Tensor, k: Tensor, v: Tensor, valid: Any, logs: Any, *parameters: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        keys, parts = KeyInputs(k, v, valid, logs), _cut_lanes(config, q, k, causal)
        if len(parts) == 1:  # without a copy
            out, total = _attend(config, causal, q, keys)
            return out.to(q.dtype), total
        out, totals = q.new_empty(*q.shape[:3], v.shape[2]), []
        for lanes in parts:
            out[lanes], total = _attend(config, causal, q[lanes], keys.lanes(lanes))
            totals.append(total)
        return out, torch.cat(totals) if config.divisor else None

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.config, ctx.causal, q, k, v, valid, logs, *_ = inputs
        out, totals = output
        ctx.save_for_backward(q, k, v, valid, logs, out, totals)
        if totals is not None:
            ctx.mark_non_differentiable(totals)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad, _), gradients = grads, partial(_gradients, ctx.config, ctx.causal)
        return None, None, *differentiate_once(KERNEL, gradients, grad, *ctx.saved_tensors)


def _attend(config: LinearConfig, causal: bool, q: Tensor, keys: KeyInputs) -> tuple[Tensor, Any]:
    """Rows, and their sums of weights where they are divided by these."""
    x, _ = config.queries(q, slice(0, q.shape[2]))
    y, values, a = config.stretch(keys, slice(0, keys.k.shape[1]))
    rows = x.flatten(1, 2)
    if causal:
        products = _mask_later(rows @ y.mT, q.shape[1], _compute_weights(a, q, config), config.start)
        top, total = products @ values, products.sum(-1, keepdim=True) if config.divisor else None
    else:
        y = y if a is None else y * _relative_weights(a).to(y.dtype)
        top, total = rows @ (y.mT @ values), dot_rows(rows, y.sum(1)) if config.divisor else None
    out = top if config.divisor is None or total is None else top / config.divisor(total)
    return out.view(*q.shape[:3], -1), None if total is None else total.view(*q.shape[:3], 1)


def _gradients(config: LinearConfig, causal: bool, grad: Tensor, *saved: Any) -> tuple[Tensor | None, ...]:
    """Gradients by all arguments of `_ShortFunction` from q on."""
    q, *key_tensors, out, totals = saved
    keys, tape = KeyInputs(*key_tensors), FeatureTape(config)
    parts = _cut_lanes(config, q, keys.k, causal)
    if len(parts) == 1:
        grads, grad_a = _lane_gradients(tape, causal, q, keys, SavedRows(grad, out, *config.divisors(totals)))
        grads = (g.to(x.dtype) for g, x in zip(grads, (q, keys.k, keys.v), strict=True))
        grad_logs = None if keys.logs is None or grad_a is None else grad_a.to(keys.logs.dtype)
        return *grads, None, grad_logs, *tape.grad_parameters
    grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, keys.k, keys.v))
    grad_logs = None if keys.logs is None else torch.empty_like(keys.logs)
    for lanes in parts:
        divisors = config.divisors(None if totals is None else totals[lanes])
        saved_rows = SavedRows(grad[lanes], out[lanes], *divisors)
        grads, grad_a = _lane_gradients(tape, causal, q[lanes], keys.lanes(lanes), saved_rows)
        grad_q[lanes], grad_k[lanes], grad_v[lanes] = grads
        if grad_logs is not None and grad_a is not None:
            grad_logs[lanes] = grad_a
    return grad_q, grad_k, grad_v, None, grad_logs, *tape.grad_parameters


def _lane_gradients(
    tape: FeatureTape, causal: bool, q: Tensor, keys: KeyInputs, saved_rows: SavedRows
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    config, query_rows = tape.config, slice(0, q.shape[2])
    x, backward_q = tape.record_queries(q, query_rows)
    (y, values, a), backward_k = tape.record_keys(keys, slice(0, keys.k.shape[1]))
    grad_tops, grad_totals = saved_rows.divide_backward(query_rows)
    rows, grad_tops = x.flatten(1, 2), grad_tops.flatten(1, 2)
    grad_totals = None if grad_totals is None else grad_totals.flatten(1, 2)
    if causal:
        weights = _compute_weights(a, q, config)
        products = _mask_later(rows @ y.mT, q.shape[1], weights, config.start)
        grad_products = pair_gradients(grad_tops, grad_totals, values)
        grad_products = _mask_later(grad_products, q.shape[1], weights, config.start)
        grad_x, grad_y, grad_v = grad_products @ y, grad_products.mT @ rows, products.mT @ grad_tops
    else:
        scale = None if a is None else _relative_weights(a).to(y.dtype)
        weighted = y if scale is None else y * scale
        grad_x, grad_kv = grad_tops @ (weighted.mT @ values).mT, rows.mT @ grad_tops
        grad_y, grad_v = values @ grad_kv.mT, weighted @ grad_kv
        if grad_totals is not None:
            grad_x.addcmul_(grad_totals, weighted.sum(1)[:, None])
            grad_y.add_(grad_totals.mT @ rows)
        grad_y = grad_y if scale is None else grad_y.mul_(scale)
    grad_k, grad_a = backward_k(grad_y)
    return (backward_q(grad_x.view(x.shape)), grad_k, grad_v), grad_a


def _mask_later(products: Tensor, group: int, weights: Tensor | None, start: int) -> Tensor:
    """Products ``[Bh, G N, M]`` of rows and keys, multiplied by their weights; 0 for later keys."""
    square = products.view(len(products), group, -1, products.shape[2])
    return (square.tril_(start) if weights is None else square.mul_(weights)).flatten(1, 2)


def _compute_weights(a: Tensor | None, q: Tensor, config: LinearConfig) -> Tensor | None:
    """Weights ``[Bh, 1, N, M]`` from logarithms ``[Bh, M]``, 0 for later keys: relative to the largest visible to a
    row, or to that of its own position if weights decay with distance."""
    if a is None:
        return None
    visible = torch.ones(q.shape[2], a.shape[1], dtype=torch.bool, device=a.device).tril_(config.start)
    logs = a[:, None].masked_fill(~visible, float("-inf"))
    own_positions = slice(config.start, config.start + q.shape[2])
    row_reference = a[:, own_positions, None] if config.decays else logs.amax(-1, keepdim=True)
    return relative_weights(logs, row_reference)[:, None].to(config.widen(q[:0]).dtype)


def _relative_weights(a: Tensor) -> Tensor:
    """Weights ``[Bh, M, 1]`` from logarithms, relative to the largest."""
    return relative_weights(a, a.amax(1, keepdim=True))[..., None]
