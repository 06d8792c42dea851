"""Landmarks, the means of segments of a sequence, and the iterated pseudo-inverse of Nystromformer."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..dense import masked_softmax, widen
from ..derivatives import KernelFunction


class Landmarks(NamedTuple):
    """``means [B, heads, slots, D]``, at least float32; ``there [B, slots]``: which of them a row has, None for all."""

    means: Tensor
    present: Tensor | None


def segment_means(x: Tensor, valid: Tensor | None, count: int) -> Landmarks:
    """At most ``count`` means over the valid positions of ``x [B, heads, L, D]``, L >= 1. Of a row's V valid positions,
    the r-th belongs to segment r // ceil(V / count); the last segment may be shorter. Masked positions (``valid [B,
    L]``) must be finite."""
    if valid is None:
        return Landmarks(_unpadded_means(x, count), None)
    segment, counts = assign_segments(valid, count)
    batch, slots = counts.shape
    # one sum for all rows of the batch: row b's segments are consecutive from b (slots + 1) on, the last one
    # of them for masked positions
    index = segment + torch.arange(batch, device=x.device)[:, None] * (slots + 1)
    positions = widen(x).transpose(1, 2).flatten(0, 1)
    zeros, index = positions.new_zeros(batch * (slots + 1), *positions.shape[1:]), index.flatten()
    if x.device.type == "cuda":  # index_add adds in an order that changes from call to call there
        sums = zeros.index_put((index,), positions, accumulate=True)
    else:
        sums = zeros.index_add(0, index, positions)
    sums = sums.unflatten(0, (batch, slots + 1))[:, :slots].transpose(1, 2)
    return Landmarks(sums / counts.clamp(min=1)[:, None, :, None], counts > 0)


def segment_means_with_input(x: Tensor, valid: Tensor | None, count: int) -> tuple[Tensor, Landmarks]:
    """x and its `segment_means`, whose gradient is added to that of x: autograd would write it out per position."""
    if valid is not None or torch.compiler.is_compiling():
        return x, segment_means(x, valid, count)
    x_view, means = cast(tuple[Tensor, Tensor], _SegmentMeansFunction.apply(x, count))
    return x_view, Landmarks(means, None)


class _SegmentMeansFunction(KernelFunction):
    @staticmethod
    def forward(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return x.view_as(x), _unpadded_means(x, count)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, count = inputs
        ctx.size = -(-x.shape[2] // count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_x, grad_means = grads
        grad_x, grad_means = grad_x.clone(), grad_means.to(grad_x.dtype)
        length = grad_x.shape[2]
        whole = length - length % ctx.size
        slots = grad_means[:, :, : whole // ctx.size, None]
        grad_x[:, :, :whole].unflatten(2, (-1, ctx.size)).add_(slots, alpha=1 / ctx.size)
        if whole < length:
            grad_x[:, :, whole:].add_(grad_means[:, :, -1:], alpha=1 / (length - whole))
        return grad_x, None


def assign_segments(valid: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The segment ``[B, L]`` of each position, and how many positions ``[B, slots]`` each segment has. slots is
    min(count, L); a hidden position belongs to segment ``slots``, which is none."""
    slots = min(count, valid.shape[1])
    total = valid.sum(1, keepdim=True)
    size = ((total + count - 1) // count).clamp(min=1)
    segment = ((valid.cumsum(1) - 1) // size).masked_fill(~valid, slots)
    first = torch.arange(slots, device=valid.device) * size
    return segment, (total - first).clamp(min=0).minimum(size)


def _unpadded_means(x: Tensor, count: int) -> Tensor:
    length = x.shape[2]
    size = -(-length // count)
    whole = length - length % size
    # sums first: the backward pass of a sum is a view, that of a mean is as long as x
    dtype = torch.promote_types(x.dtype, torch.float32)
    means = x[:, :, :whole].unflatten(2, (-1, size)).sum(3, dtype=dtype) / size
    if whole < length:
        means = torch.cat([means, x[:, :, whole:].mean(2, keepdim=True, dtype=dtype)], 2)
    return means


def landmark_weights(q: Landmarks, k: Landmarks, scale: float) -> Tensor:
    """softmax(scale q k^T) among landmarks, ``[B, heads, slots, slots]``; rows and columns of missing ones are zero."""
    scores = q.means @ k.means.mT * scale
    if q.present is None and k.present is None:
        return scores.softmax(-1)
    allowed = scores.new_ones((1, 1, 1, 1), dtype=torch.bool)
    allowed = allowed if q.present is None else allowed & q.present[:, None, :, None]
    allowed = allowed if k.present is None else allowed & k.present[:, None, None, :]
    return masked_softmax(scores, allowed)


def pseudo_inverse(a: Tensor, steps: int) -> Tensor:
    """The Moore-Penrose inverse of matrices ``a [.., R, C]`` after so many steps of Nystromformer's iteration.

    Z <- Z (13 I - AZ (15 I - AZ (7 I - AZ))) / 4 from Z = A^T / (|A|_1 |A|_inf), each matrix by its own norms. A part
    of A with singular value s is inverted once 3.25^steps s^2 exceeds |A|_1 |A|_inf, and damped until then. Rows and
    columns of zeros stay zero.
    """
    size = a.abs()
    norms = size.sum(-2).amax(-1) * size.sum(-1).amax(-1)
    return iterate_inverse(a, a.mT / norms.masked_fill(norms == 0, 1)[..., None, None], steps)


def iterate_inverse(a: Tensor, z: Tensor, steps: int) -> Tensor:
    """The iteration of `pseudo_inverse` from z on."""
    identity = torch.eye(a.shape[-2], dtype=a.dtype, device=a.device)
    for _ in range(steps):
        az = a @ z
        z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
    return z
