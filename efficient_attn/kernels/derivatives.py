"""What all kernels with their own backward pass share: a first derivative only, and support of torch.func.

With ``create_graph=True`` autograd would miss the dependence through saved tensors if the loss is linear in the output.
Gradients are therefore a separate function here, whose derivative raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

from ..contract.autocast import is_autocast_enabled
from ..errors import UnsupportedError
from .custom_ops import in_functorch_transform, make_op


class KernelFunction(torch.autograd.Function):
    """Base class of kernels as autograd functions with `setup_context`. Under vmap a kernel processes one member after
    another."""

    @classmethod
    def apply(cls, *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Faster than torch's own `apply`, which inspects the signature of `forward` for defaults in every call: 50
        microseconds. Nothing is saved if no gradient is required."""
        if in_functorch_transform():
            return super().apply(*args)
        if not (torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)):
            return cls.forward(*args)
        base: Any = super(torch.autograd.Function, cls)
        return base.apply(*unwrap_dead_wrappers(args))

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return vmap_serially(cls.apply, info, in_dims, *args)


class SoftmaxFunction(KernelFunction):
    """Base class of kernels that return an output and one log-sum-exp for each row, and save both with their inputs.

    Inputs are tensors, q, k and v first, then other arguments. ``gradients`` takes the output gradient, the tensors,
    the output, the log-sum-exps and the other arguments, and returns the gradients of q, k and v, or of the first
    ``differentiated`` tensors.
    """

    kernel: ClassVar[str]  # its name, as a sentence begins with it
    n_tensors: ClassVar[int] = 4  # q, k, v and a mask
    n_differentiated: ClassVar[int] = 3
    gradients: ClassVar[Callable[..., tuple[Tensor, ...]]]

    @classmethod
    def setup_context(cls, ctx: Any, inputs: Any, output: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        _save_for_backward(ctx, inputs, output, cls.n_tensors, cls.n_differentiated)

    @classmethod
    def backward(cls, ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        arguments = (grads[0], *ctx.saved_tensors, *ctx.how)
        return *differentiate_once(cls.kernel, cls.gradients, *arguments), *[None] * ctx.others


def make_softmax_op(
    name: str,
    run: Callable[..., tuple[Tensor, Tensor]],
    gradients: Callable[..., tuple[Tensor, ...]],
    *,
    n_tensors: int = 4,
    n_differentiated: int = 3,
    shapes: Callable[..., tuple[Tensor, Tensor]] | None = None,
) -> Any:
    """A `SoftmaxFunction`'s ``forward`` and ``gradients``, whose signatures are typed, as ops ``efficient_attn::name``
    and ``name_backward``. shapes: of the results of ``run``, if not q's."""

    def backward_shapes(_: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.new_empty(x.shape) for x in tensors[:n_differentiated])

    op = make_op(name, run, shapes or _softmax_shapes)
    op_backward = make_op(f"{name}_backward", gradients, backward_shapes)

    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *op_backward(grads[0], *ctx.saved_tensors, *ctx.how), *[None] * ctx.others

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save_for_backward(ctx, inputs, output, n_tensors, n_differentiated)

    op.register_autograd(backward, setup_context=setup_context)
    return op


def _save_for_backward(ctx: Any, inputs: Any, output: Any, n_tensors: int, n_differentiated: int) -> None:
    ctx.how, ctx.others = inputs[n_tensors:], len(inputs) - n_differentiated
    ctx.save_for_backward(*inputs[:n_tensors], *output)
    ctx.mark_non_differentiable(output[1])


def _softmax_shapes(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))


def vmap_serially(run: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    """The vmap rule that calls ``run`` for the members of its batch, one after another."""

    def run_member(i: int) -> Any:
        return run(*(x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True)))

    results = [run_member(i) for i in range(info.batch_size)]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    outputs = list(zip(*results, strict=True))
    dims = tuple(None if output[0] is None else 0 for output in outputs)
    return tuple(None if output[0] is None else torch.stack(output) for output in outputs), dims


class _FirstDerivative(KernelFunction):
    @staticmethod
    def forward(kernel: str, gradients: Callable[..., Any], *arguments: Any) -> Any:
        return gradients(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kernel = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise UnsupportedError(f"{ctx.kernel} has no second derivative; backend=dense has one")


def differentiate_once(kernel: str, gradients: Callable[..., Any], grad: Tensor, *arguments: Any) -> Any:
    """``gradients(grad, *given)`` for a kernel's backward pass: without autocast, and with an error if autograd
    differentiates the result. kernel: its name, as the beginning of the message."""
    if is_autocast_enabled(grad):
        with torch.autocast(grad.device.type, enabled=False):
            return differentiate_once(kernel, gradients, grad, *arguments)
    if not torch.is_grad_enabled():
        return gradients(grad, *arguments)
    return _FirstDerivative.apply(kernel, gradients, grad, *arguments)
