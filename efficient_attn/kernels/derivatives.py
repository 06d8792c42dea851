"""What all kernels with a backward pass of their own share: one derivative and no more, and how torch.func takes them.

A gradient that autograd follows (``create_graph=True``) would miss what goes through the tensors that were saved, as
soon as the loss is linear in the output. So gradients are a function of their own here, whose derivative is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import unwrap_dead_wrappers

from ..contract.modes import autocasts
from ..errors import UnsupportedError
from .traced import transformed


class KernelFunction(torch.autograd.Function):
    """Base of the kernels' functions, which have `setup_context`. Under vmap a kernel serves one after another."""

    @classmethod
    def apply(cls, *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Without the detours of torch's own `apply`, which reads the signature of `forward` in every call, for
        defaults, of which kernels have none: 50 microseconds. Where no gradient is wanted nothing is kept."""
        if transformed():
            return super().apply(*args)
        if not (torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)):
            return cls.forward(*args)
        plain: Any = super(torch.autograd.Function, cls)
        return plain.apply(*unwrap_dead_wrappers(args))

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return one_by_one(cls.apply, info, in_dims, *args)


def one_by_one(run: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
    """The rule by which vmap has ``run`` serve the members of its batch, one after another."""

    def serve(i: int) -> Any:
        return run(*(x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True)))

    found = [serve(i) for i in range(info.batch_size)]
    if isinstance(found[0], Tensor):
        return torch.stack(found), 0
    parts = list(zip(*found, strict=True))
    dims = tuple(None if part[0] is None else 0 for part in parts)
    return tuple(None if part[0] is None else torch.stack(part) for part in parts), dims


class _Once(KernelFunction):
    @staticmethod
    def forward(kernel: str, gradients: Callable[..., Any], *given: Any) -> Any:
        return gradients(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kernel = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise UnsupportedError(f"{ctx.kernel} has no second derivative; backend=dense has one")


def differentiate_once(kernel: str, gradients: Callable[..., Any], grad: Tensor, *given: Any) -> Any:
    """``gradients(grad, *given)``, for a kernel's backward pass: without autocast, and an error if autograd should
    differentiate what comes out. kernel: its name, as a sentence begins with it."""
    if autocasts(grad):
        with torch.autocast(grad.device.type, enabled=False):
            return differentiate_once(kernel, gradients, grad, *given)
    if not torch.is_grad_enabled():
        return gradients(grad, *given)
    return _Once.apply(kernel, gradients, grad, *given)
