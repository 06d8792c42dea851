"""Keys or values projected along their length: no copy of them, no gradient of the weights for each head.

On the CPU a head's product goes through oneDNN in float32: about twice as fast as a batched product.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..dense import wide
from ..products import on_onednn, times

POSITIONS = 4096  # taken at a time, so that what a product needs besides its result does not grow with the length


def project(weights: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
    """``weights [1 or heads, R, M]`` times each ``x [B, heads, M, D]``: ``[B, heads, R, D]``."""
    return cast(tuple[Tensor, ...], _Projection.apply(weights, *xs))


class _Projection(torch.autograd.Function):
    """Autograd of a batched product would first build the weights' gradient for each row and head, R x M numbers each,
    and then add them up; here they are added as they come, those of keys and values that share weights as well."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(weights, *xs)
        return tuple(_each(weights, x) for x in xs)

    @staticmethod
    @once_differentiable  # a second derivative would be silently wrong, so it is refused
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        weights, *xs = ctx.saved_tensors
        by_weights = None
        if ctx.needs_input_grad[0]:
            total = torch.zeros_like(wide(weights))
            for grad, x in zip(grads, xs, strict=True):
                _add_products(total, grad, x)
            by_weights = total.to(weights.dtype)
        wanted = ctx.needs_input_grad[1:]
        return by_weights, *(_each(weights.mT, g) if want else None for g, want in zip(grads, wanted, strict=True))


def _each(weights: Tensor, x: Tensor) -> Tensor:
    """``weights [1 or heads, R, M] @ x [B, heads, M, D]``."""
    if not on_onednn(x):
        return weights @ x
    out = x.new_empty(*x.shape[:2], weights.shape[1], x.shape[3])
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for rows, to in zip(weights[h % len(weights)].split(POSITIONS), out[b, h].split(POSITIONS), strict=True):
                to.copy_(times(rows, x[b, h]))
    return out


def _add_products(total: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add ``grad [B, heads, R, D] @ x^T [B, heads, D, M]`` to ``total [1 or heads, R, M]``, over all rows."""
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            for part, to in zip(x[b, h].split(POSITIONS), total[h % len(total)].split(POSITIONS, 1), strict=True):
                a, b_t = wide(grad[b, h]), wide(part).mT
                to += times(a, b_t) if on_onednn(a) else a @ b_t
