"""What all kernels with their own backward pass share: a first derivative only, and support of torch.func.

With ``create_graph=True`` autograd would miss the dependence through saved tensors if the loss is linear in the output.
Gradients are therefore a separate function here, whose derivative raises an error.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

from ..contract.autocast import is_autocast_enabled
from ..errors import UnsupportedError
from .custom_ops import in_functorch_transform


class KernelFunction(torch.autograd.Function):
    """Base class of kernels as autograd functions with `setup_context`."""

    @classmethod
    def apply(cls, *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The forward pass alone if nothing follows it."""
        return cls.record(*args) if is_followed(args) else cls.forward(*args)

    @classmethod
    def record(cls, *args: Any) -> Any:
        """As torch's own `apply`, which inspects the signature of `forward` in every call: 50 microseconds."""
        if in_functorch_transform():
            return super().apply(*args)
        base: Any = super(torch.autograd.Function, cls)
        return base.apply(*unwrap_dead_wrappers(args))

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """See `vmap_serially`."""
        return vmap_serially(cls.apply, info, in_dims, *args)


def wants_gradient(*tensors: Tensor) -> bool:
    """Whether autograd is to follow a call with these tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def is_followed(args: Iterable[Any]) -> bool:
    """Whether autograd or a transformation of torch.func may follow a call with these arguments."""
    if in_functorch_transform():
        return True
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)


def vmap_serially(run: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    """The vmap rule that calls ``run`` for the members of its batch, one after another."""

    def run_member(i: int) -> Any:
        return run(*(x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True)))

    results = [run_member(i) for i in range(info.batch_size)]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    outputs = tuple(None if output[0] is None else torch.stack(output) for output in zip(*results, strict=True))
    return outputs, tuple(None if output is None else 0 for output in outputs)


class _FirstDerivative(KernelFunction):
    @staticmethod
    def forward(kernel: str, gradients: Callable[..., Any], *arguments: Any) -> Any:
        return gradients(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kernel_name, *_ = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise UnsupportedError(f"{ctx.kernel_name} has no second derivative; backend=dense has one")


def differentiate_once(kernel: str, gradients: Callable[..., Any], grad: Tensor, *arguments: Any) -> Any:
    """``gradients(grad, *arguments)`` for a kernel's backward pass: without autocast, and with an error if autograd
    differentiates the result. kernel: its name, as the beginning of the message."""
    if is_autocast_enabled(grad):
        with torch.autocast(grad.device.type, enabled=False):
            return differentiate_once(kernel, gradients, grad, *arguments)
    if not torch.is_grad_enabled():
        return gradients(grad, *arguments)
    return _FirstDerivative.apply(kernel, gradients, grad, *arguments)
