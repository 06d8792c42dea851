"""Pairs of numbers turned by angles, in one fresh tensor: new pages cost as much as the arithmetic."""

from typing import Any

import torch
from torch import Tensor

from .custom_ops import in_functorch_transform


def rotate(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    """Each number of ``x [.., D]`` times its cosine, plus its partner times its signed sine; the rest is unchanged.
    cos, sin: ``[.., rotated]``, float32 or wider. adjacent: whether partners are neighbors; else i, i + rotated / 2."""
    if torch.compiler.is_compiling() or in_functorch_transform():
        return _rotate_out_of_place(x, cos, sin, adjacent)
    if torch.is_grad_enabled() and x.requires_grad:
        return _RotateFunction.apply(x, cos, sin, adjacent)  # pyright: ignore[reportReturnType]
    return _rotate_into_copy(x, cos, sin, adjacent)


def _rotate_out_of_place(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    rotary_width = cos.shape[-1]
    rows = x[..., :rotary_width].to(cos.dtype)
    partners = rows.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if adjacent else rows.roll(rotary_width // 2, -1)
    rotated = (rows * cos + partners * sin).to(x.dtype)
    return torch.cat([rotated, x[..., rotary_width:]], -1) if rotary_width < x.shape[-1] else rotated


def _rotate_into_copy(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    rotary_width, source = cos.shape[-1], x.to(cos.dtype)
    half = rotary_width // 2
    first, second = (
        (slice(0, rotary_width, 2), slice(1, rotary_width, 2)) if adjacent else (slice(half), slice(half, rotary_width))
    )
    if rotary_width == x.shape[-1]:
        out = source * cos
    else:
        out = source.clone()
        out[..., :rotary_width].mul_(cos)
    for members, partners in ((first, second), (second, first)):
        out[..., members].addcmul_(source[..., partners], sin[..., members])
    return out.to(x.dtype)


class _RotateFunction(torch.autograd.Function):
    """Its gradient is the inverse rotation, so that any derivative is one more rotation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(cos, sin)
        ctx.adjacent = adjacent
        return _rotate_into_copy(x, cos, sin, adjacent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, -sin, ctx.adjacent), None, None, None
