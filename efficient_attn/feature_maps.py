"""Feature maps for linearized attention: a softmax kernel replaced by phi(q) . phi(k), as a value."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class FeatureMap:
    """phi, applied to queries and keys ``[.., L, D]``, returning ``[.., L, width(D)]``.

    scaled: phi returns features and the logarithm ``[.., L]`` of their common factor. A key's factor is only formed
    relative to the largest that a query sees, and a query's cancels, so that exponentials of any size are safe.
    positional: phi also takes the positions ``[L]``, as ``phi(x, at)``. signed: products may be negative, so that sums
    may be close to zero, and divisors are kept away from it. exact: all sums are in float64, for products of both signs
    that nearly cancel. back: the gradient with respect to x, ``back(x, features, by_features, by_logarithm)``, for maps
    without parameters or positions, where it is cheaper than autograd. It may overwrite features and by_features;
    masked rows have zero features, and their gradients are ignored. by_logarithm is None for queries. kernel: the same
    products from fewer features, where pairs are formed anyway. A mechanism can be pickled if phi and width are
    module-level functions or partials of them.
    """

    phi: Callable[..., Tensor | tuple[Tensor, Tensor]]
    width: Callable[[int], int] = int  # as many features as components
    scaled: bool = False
    positional: bool = False
    signed: bool = False
    exact: bool = False
    back: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] | None = None
    kernel: "PairKernel | None" = None

    def __hash__(self) -> int:
        """The hash of all fields; torch.compile before torch 2.13 also asks for that of a map that has none yet."""
        return hash(tuple(vars(self).values()))

    def __call__(self, x: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The features ``[.., F]``, and the logarithm ``[..]`` of their common factor if the map is scaled."""
        output = self.phi(x, at) if self.positional else self.phi(x)
        return output if isinstance(output, tuple) else (output, None)


class PairKernel(NamedTuple):
    """phi(x).phi(y) as a function of s = base(x).base(y): its value, and its slope by s, which may overwrite s."""

    base: FeatureMap
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


LOG2_E = math.log2(math.e)  # torch's exp2 takes a quarter of the time of its exp on CPUs


def _elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1 in half the time: exp(x) below zero, x + 1 above."""
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportAttributeAccessIssue]
        or (x.requires_grad and torch.is_grad_enabled())
    ):
        return x.clamp(max=0).exp() + x.relu()
    return power_of_e(x.clamp(max=0)).add_(x.clamp(min=0))


def power_of_e(x: Tensor) -> Tensor:
    """e^x in place; on a CPU in less time than torch's exp takes."""
    return x.mul_(LOG2_E).exp2_() if x.device.type == "cpu" else x.exp_()


def _elu_plus_one_backward(x: Tensor, features: Tensor, by_features: Tensor, by_logarithm: Tensor | None) -> Tensor:
    return by_features.mul_(features.clamp_(max=1))


def _relu_backward(x: Tensor, features: Tensor, by_features: Tensor, by_logarithm: Tensor | None) -> Tensor:
    return by_features.masked_fill_(features <= 0, 0)


elu_plus_one = FeatureMap(_elu_plus_one, back=_elu_plus_one_backward)
relu = FeatureMap(F.relu, back=_relu_backward)


def scale(x: Tensor) -> Tensor:
    """x / D^(1/4), so that products are q.k / sqrt(D)."""
    return x * x.shape[-1] ** -0.25


def _scale_backward(x: Tensor, features: Tensor, by_features: Tensor, by_logarithm: Tensor | None) -> Tensor:
    return by_features.mul_(x.shape[-1] ** -0.25)


scaled_identity = FeatureMap(scale, back=_scale_backward)


BLOCK = 8  # components whose products with the rest are formed together


def _expand_second_order(x: Tensor) -> Tensor:
    """1, x and the products of its components: those of a block with all from its own on, so that few occur twice.

    Products within a block occur twice, and squares once where they should count half: both by a factor 1/sqrt(2).
    """
    x, width = scale(x), x.shape[-1]
    parts = [torch.ones_like(x[..., :1]), x]
    for i in range(0, width, BLOCK):
        within_block = x[..., i : i + BLOCK] * math.sqrt(0.5)
        factors = torch.cat([within_block, x[..., i + BLOCK :]], -1)
        parts.append((x[..., i : i + BLOCK, None] * factors[..., None, :]).flatten(-2))
    return torch.cat(parts, -1)


def _compute_second_order_width(width: int) -> int:
    return 1 + width + sum(min(BLOCK, width - i) * (width - i) for i in range(0, width, BLOCK))


def _compute_series(s: Tensor) -> Tensor:
    return (s + 1).addcmul_(s, s, value=0.5)


def _compute_series_slope(s: Tensor) -> Tensor:
    return s.add_(1)


# 1 + s + s^2 / 2 with s = q.k / sqrt(D): the series of exp(s), positive for every s
taylor = FeatureMap(
    _expand_second_order,
    _compute_second_order_width,
    kernel=PairKernel(scaled_identity, _compute_series, _compute_series_slope),
)


def cosine(horizon: int) -> FeatureMap:
    """relu(q_i) . relu(k_j) times cos(pi/2 (i - j) / horizon), which is positive while abs(i - j) < horizon."""
    return FeatureMap(partial(_apply_cosine, horizon=horizon), partial(mul, 2), positional=True)


def _apply_cosine(x: Tensor, positions: Tensor, *, horizon: int) -> Tensor:
    angles = (positions.double() * (math.pi / 2 / horizon))[:, None]
    x = x.relu()
    return torch.cat([x * angles.cos().to(x.dtype), x * angles.sin().to(x.dtype)], -1)
