"""Keys or values projected along their length, without copying them or a gradient of the weights for each head."""

from functools import partial
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor

from ..custom_ops import make_op
from ..dense import widen
from ..derivatives import KernelFunction, differentiate_once
from ..half_precision import product_dtype
from ..products import add_matrix_product, multiply_rows


def project(weights: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
    """``weights [1 or heads, R, M]`` times each ``x [B, heads, M, D]``: ``[B, heads, R, D]``."""
    if torch.compiler.is_compiling():
        return tuple(_project_op(weights, x) for x in xs)
    return cast(tuple[Tensor, ...], _ProjectionFunction.apply(weights, *xs))


class _ProjectionFunction(KernelFunction):
    """Autograd of a batched product would first build the weights' gradient for each row and head, R x M numbers each,
    and then add them up; here they are added as they come, those of keys and values that share weights as well."""

    @staticmethod
    def forward(weights: Tensor, *xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(_project_each(weights, x) for x in xs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = partial(_gradients, ctx.needs_input_grad)
        return differentiate_once("the projection along the length", gradients, *grads, *ctx.saved_tensors)


def _gradients(needed: tuple[bool, ...], *tensors: Tensor) -> tuple[Tensor | None, ...]:
    """The needed gradients by weights and projected tensors. tensors: gradients of results, weights, and projected."""
    weights_needed, *xs_needed = needed
    grads, (weights, *xs) = tensors[: len(xs_needed)], tensors[len(xs_needed) :]
    grad_weights = None
    if weights_needed:
        total = torch.zeros_like(weights, dtype=widen(xs[0][:0]).dtype)
        for grad, x in zip(grads, xs, strict=True):
            for b, h in product(range(x.shape[0]), range(x.shape[1])):
                add_matrix_product(total[h % len(total)], grad[b, h].to(total.dtype), x[b, h].to(total.dtype).mT)
        grad_weights = total.to(weights.dtype)
    pairs = zip(grads, xs_needed, strict=True)
    return grad_weights, *(_project_each(weights.mT, grad) if is_needed else None for grad, is_needed in pairs)


def _project_each(weights: Tensor, x: Tensor) -> Tensor:
    """``weights [1 or heads, R, M] @ x [B, heads, M, D]``, in the dtype of x."""
    rows, inner = weights.shape[1:]
    dtype = product_dtype(x, rows, inner, x.shape[3])
    w, xs = weights.to(dtype), x.to(dtype)
    if len(w) > 1:
        return torch.stack([multiply_rows(w, part) for part in xs]).to(x.dtype)
    repeated = w.expand(x.shape[0] * x.shape[1], rows, inner)  # repeated by stride zero: no copy
    return multiply_rows(repeated, xs.flatten(0, 1)).to(x.dtype).unflatten(0, x.shape[:2])


def _run_backward(grad: Tensor, weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return cast(tuple[Tensor, Tensor], _gradients((True, True), grad, weights, x))


def _shapes(_: Tensor, weights: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return weights.new_empty(weights.shape), x.new_empty(x.shape)


_project_op = make_op("project", _project_each, lambda w, x: x.new_empty(*x.shape[:2], w.shape[1], x.shape[3]))
_project_backward_op = make_op("project_backward", _run_backward, _shapes)
_project_op.register_autograd(
    lambda ctx, grad: _project_backward_op(grad, *ctx.saved_tensors), setup_context=_ProjectionFunction.setup_context
)
