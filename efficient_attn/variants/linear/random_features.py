"""Random features: maps whose products are, on average over drawn directions, a kernel of q and k.

Every map here takes ``directions [m, D]`` and estimates exp(x.y), or relu's kernel, by a mean over the m directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ...feature_maps import LOG2_E, FeatureMap
from ...kernels import products

Kind = Literal["positive", "trigonometric", "hyperbolic", "relu"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RELU_FLOOR = 1e-3  # the paper's: no row of weights is then all zero


def draw_directions(count: int, width: int, *, orthogonal: bool, seed: int) -> Tensor:
    """``[count, width]`` directions w ~ N(0, I), a function of the seed alone.

    orthogonal: directions of one block of ``width`` are at right angles; each alone is still N(0, I).
    """
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(count, width, generator=generator, dtype=torch.float64)
    if orthogonal:
        blocks = torch.randn(-(-count // width), width, width, generator=generator, dtype=torch.float64)
        bases, triangles = torch.linalg.qr(blocks)
        bases = bases * triangles.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # uniform over all bases only with signs
        gaussian = bases.mT.flatten(0, 1)[:count] * gaussian.norm(dim=1, keepdim=True)
    return gaussian.float()


def random_map(kind: Kind, directions: Tensor) -> FeatureMap:
    """The map of a kind along given directions, for queries and keys as they are: scale them first."""
    return FeatureMap(
        partial(_features, kind, directions),
        partial(_count, _MAPS[kind].each * len(directions)),
        scaled=kind != "relu",
        signed=kind == "trigonometric",
        back=partial(_back, kind, directions),
    )


def softmax_map(kind: Kind, directions: Tensor) -> FeatureMap:
    """The same for exp(q.k / sqrt(D)). Of trigonometric weights so little may be left that float32 keeps two digits."""
    inner = random_map(kind, directions)
    features, back = (partial(run, kind, directions, scaled=True) for run in (_features, _back))
    return replace(inner, phi=features, exact=inner.signed, back=back)


def unit_map(directions: Tensor) -> FeatureMap:
    """Trigonometric features of q / |q| and k / |k|: what their lengths contribute to the softmax is left out."""
    inner = random_map("trigonometric", directions)
    return replace(inner, phi=partial(_unit_features, directions), scaled=False, back=partial(_unit_back, directions))


def _features(kind: Kind, directions: Tensor, x: Tensor, scaled: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    return _MAPS[kind].features(x, directions.to(x.dtype), _size(x, scaled))


def _size(x: Tensor, scaled: bool) -> float:
    """What x is multiplied by; directions are fewer than positions, so they are it that get it."""
    return x.shape[-1] ** -0.25 if scaled else 1.0


def _unit_features(directions: Tensor, x: Tensor) -> Tensor:
    return _trigonometric(F.normalize(x, dim=-1), directions.to(x.dtype), 1.0)[0]


def _back(
    kind: Kind,
    directions: Tensor,
    x: Tensor,
    features: Tensor,
    by_features: Tensor,
    by_logarithm: Tensor | None,
    scaled: bool = False,
) -> Tensor:
    """The gradient by x. A map's slope along a direction is made of its features."""
    size = _size(x, scaled)
    by_x = products.combine_directions(_MAPS[kind].along(features, by_features), directions.to(x.dtype) * size)
    if by_logarithm is None:
        return by_x
    return by_x.addcmul_(x, by_logarithm[..., None], value=size**2 if kind == "trigonometric" else -(size**2))


def _unit_back(
    directions: Tensor, x: Tensor, features: Tensor, by_features: Tensor, by_logarithm: Tensor | None
) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=1e-12)  # as F.normalize has it
    unit = x / norm
    by_unit = _back("trigonometric", directions, unit, features, by_features, None)
    return by_unit.addcmul_(unit, (by_unit * unit).sum(-1, keepdim=True), value=-1).div_(norm)


def _count(features: int, width: int) -> int:
    """How many features there are, whatever the width of x."""
    return features


def _positive(x: Tensor, directions: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """exp(w.x - |x|^2 / 2): the mean over w of the products is exp(x.y), and no term is negative."""
    along = products.project_onto(x, directions * (LOG2_E * size))
    top = along.detach().amax(-1)
    return _powers(along, top + math.log2(len(directions)) / 2), top / LOG2_E - _half_square(x, size)


def _hyperbolic(x: Tensor, directions: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Positive features along w and along -w, which cancels what is odd in w."""
    along = products.project_onto(x, directions * (LOG2_E * size))
    along = torch.cat([along, -along], -1)
    top = along.detach().amax(-1)
    return _powers(along, top + math.log2(2 * len(directions)) / 2), top / LOG2_E - _half_square(x, size)


def _trigonometric(x: Tensor, directions: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """exp(|x|^2 / 2) (sin w.x, cos w.x): bounded features, but products of either sign."""
    along = products.project_onto(x, directions * size)
    return torch.cat([along.sin(), along.cos()], -1) * len(directions) ** -0.5, _half_square(x, size)


def _relu(x: Tensor, directions: Tensor, size: float) -> Tensor:
    return (products.project_onto(x, directions * size).relu() + RELU_FLOOR) * len(directions) ** -0.5


def _powers(along: Tensor, unit: Tensor) -> Tensor:
    """2^(along - unit), and a little more than nothing where that vanishes.

    The largest features of a query and of a key need not be the same; of large inputs the products would all underflow,
    and the row would have no weight at all. The square of the floor is still a normal number of the dtype.
    """
    floor = torch.finfo(along.dtype).tiny ** 0.45
    if along.requires_grad and torch.is_grad_enabled():
        return (along - unit[..., None]).exp2() + floor
    return along.sub_(unit[..., None]).exp2_().add_(floor)


def _along_powers(features: Tensor, by_features: Tensor) -> Tensor:
    """The gradient by w.x of exp(w.x): the features themselves times that by them."""
    return by_features.mul_(features)


def _along_both_powers(features: Tensor, by_features: Tensor) -> Tensor:
    there, back = by_features.mul_(features).chunk(2, -1)
    return there.sub_(back)


def _along_waves(features: Tensor, by_features: Tensor) -> Tensor:
    sin, cos = features.chunk(2, -1)
    by_sin, by_cos = by_features.chunk(2, -1)
    return by_sin.mul_(cos).addcmul_(by_cos, sin, value=-1)


def _along_relu(features: Tensor, by_features: Tensor) -> Tensor:
    size = (features.shape[-1]) ** -0.5
    return by_features.mul_(size).masked_fill_(features <= RELU_FLOOR * size, 0)


def _half_square(x: Tensor, size: float) -> Tensor:
    return x.square().sum(-1) * (size**2 / 2)


class _Map(NamedTuple):
    """A kind: its features along directions of x times a number, how many of each, and from features and the gradient
    by them, which it may write over, the gradient by w.x."""

    features: Callable[[Tensor, Tensor, float], Tensor | tuple[Tensor, Tensor]]
    each: int
    along: Callable[[Tensor, Tensor], Tensor]


_MAPS: dict[Kind, _Map] = {
    "positive": _Map(_positive, 1, _along_powers),
    "trigonometric": _Map(_trigonometric, 2, _along_waves),
    "hyperbolic": _Map(_hyperbolic, 2, _along_both_powers),
    "relu": _Map(_relu, 1, _along_relu),
}
