"""Pairs of numbers turned by angles, in one fresh tensor: new pages cost as much as the arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .traced import transformed


def turn(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    """Each number of ``x [.., D]`` times its cosine, and its partner times its signed sine; what follows stays.

    cos, sin: ``[.., turned]``, float32 or wider, in which it is worked out. adjacent: whether partners are neighbours;
    else number i and i + turned / 2.
    """
    if torch.compiler.is_compiling() or transformed():
        return _by_halves(x, cos, sin, adjacent)
    if torch.is_grad_enabled() and x.requires_grad:
        return _Turned.apply(x, cos, sin, adjacent)  # pyright: ignore[reportReturnType]
    return _in_place(x, cos, sin, adjacent)


def _by_halves(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    """In torch's own operations, none of them in place."""
    turned = cos.shape[-1]
    rows = x[..., :turned].to(cos.dtype)
    partners = rows.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if adjacent else rows.roll(turned // 2, -1)
    found = (rows * cos + partners * sin).to(x.dtype)
    return torch.cat([found, x[..., turned:]], -1) if turned < x.shape[-1] else found


def _in_place(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:
    turned, wide = cos.shape[-1], x.to(cos.dtype)
    half = turned // 2
    one, other = (slice(0, turned, 2), slice(1, turned, 2)) if adjacent else (slice(half), slice(half, turned))
    if turned == x.shape[-1]:
        out = wide * cos
    else:
        out = wide.clone()
        out[..., :turned].mul_(cos)
    for mine, theirs in ((one, other), (other, one)):
        out[..., mine].addcmul_(wide[..., theirs], sin[..., mine])
    return out.to(x.dtype)


class _Turned(torch.autograd.Function):
    """Its gradient is turned back, so that any derivative of it is one more turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool) -> Tensor:  # pyright: ignore
        ctx.save_for_backward(cos, sin)
        ctx.adjacent = adjacent
        return _in_place(x, cos, sin, adjacent)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        cos, sin = ctx.saved_tensors
        return turn(grad, cos, -sin, ctx.adjacent), None, None, None
