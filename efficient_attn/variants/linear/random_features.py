"""Random features: maps whose products are, in expectation over random directions, a kernel of q and k.

Every map takes ``directions [m, D]`` and estimates exp(x.y), or relu's kernel, by a mean over the m directions.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...feature_maps import LOG2_E, FeatureMap
from ...kernels import products

FeatureKind = Literal["positive", "trigonometric", "hyperbolic", "relu"]
RELU_FLOOR = 1e-3  # the paper's: no row of weights is then all zero


def draw_directions(count: int, width: int, *, orthogonal: bool, seed: int) -> Tensor:
    """``[count, width]`` directions w ~ N(0, I), a function of the seed only.

    orthogonal: directions of one block of ``width`` are orthogonal; each is still N(0, I).
    """
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(count, width, generator=generator, dtype=torch.float64)
    if orthogonal:
        blocks = torch.randn(-(-count // width), width, width, generator=generator, dtype=torch.float64)
        bases, triangles = torch.linalg.qr(blocks)
        bases = bases * triangles.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # uniform over all bases only with signs
        gaussian = bases.mT.flatten(0, 1)[:count] * gaussian.norm(dim=1, keepdim=True)
    return gaussian.float()


def make_random_map(kind: FeatureKind, directions: Tensor, *, scaled: bool = False) -> FeatureMap:
    """The map of a kind along given directions, for exp(q.k), or if scaled for exp(q.k / sqrt(D)): its trigonometric
    weights nearly cancel, so that float32 would keep two digits."""
    is_signed = kind == "trigonometric"
    return FeatureMap(
        partial(_features, kind, directions, scaled),
        partial(_return_features, count_features(kind) * len(directions)),
        scaled=kind != "relu",
        signed=is_signed,
        exact=scaled and is_signed,
        back=partial(_backward, kind, directions, scaled),
    )


def make_unit_map(directions: Tensor, *, exact: bool = False) -> FeatureMap:
    """Trigonometric features of q / |q| and k / |k|: the softmax's dependence on their lengths is left out. exact: see
    `FeatureMap`."""
    features, back = (partial(run, directions) for run in (_unit_features, _unit_backward))
    width = partial(_return_features, 2 * len(directions))
    return FeatureMap(features, width, signed=True, exact=exact, back=back)


def count_features(kind: FeatureKind) -> int:
    """The number of features for each direction."""
    return _FEATURE_FUNCTIONS[kind].per_direction


def _features(kind: FeatureKind, directions: Tensor, scaled: bool, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    return _FEATURE_FUNCTIONS[kind].features(x, directions.to(x.dtype), _compute_scale(x, scaled))


def _compute_scale(x: Tensor, scaled: bool) -> float:
    """The factor of x, which is applied to the directions, because they are fewer than positions."""
    return x.shape[-1] ** -0.25 if scaled else 1.0


def _unit_features(directions: Tensor, x: Tensor) -> Tensor:
    return _waves(F.normalize(x, dim=-1), directions.to(x.dtype))


def _backward(
    kind: FeatureKind,
    directions: Tensor,
    scaled: bool,
    x: Tensor,
    features: Tensor,
    by_features: Tensor,
    by_logarithm: Tensor | None,
) -> Tensor:
    """The gradient with respect to x, from the features."""
    scale = _compute_scale(x, scaled)
    grad_x = products.combine_directions(
        _FEATURE_FUNCTIONS[kind].gradient_along(features, by_features), directions.to(x.dtype) * scale
    )
    if by_logarithm is None:
        return grad_x
    return grad_x.addcmul_(x, by_logarithm[..., None], value=scale**2 if kind == "trigonometric" else -(scale**2))


def _unit_backward(
    directions: Tensor, x: Tensor, features: Tensor, by_features: Tensor, by_logarithm: Tensor | None
) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=1e-12)  # as F.normalize has it
    unit = x / norm
    grad_unit = _backward("trigonometric", directions, False, unit, features, by_features, None)
    return grad_unit.addcmul_(unit, (grad_unit * unit).sum(-1, keepdim=True), value=-1).div_(norm)


def _return_features(features: int, width: int) -> int:
    """The number of features, which does not depend on the width of x."""
    return features


def _positive(x: Tensor, directions: Tensor, scale: float, *, both_signs: bool = False) -> tuple[Tensor, Tensor]:
    """exp(w.x - |x|^2 / 2): the mean over w of the products is exp(x.y), and no term is negative.

    both_signs: along w and -w, which cancels the odd part in w.
    """
    projections = products.project_onto(x, directions * (LOG2_E * scale))
    if both_signs:
        projections = torch.cat([projections, -projections], -1)
    max_projection = projections.detach().amax(-1)
    features = _exp2_above_floor(projections, max_projection + math.log2(projections.shape[-1]) / 2)
    return features, max_projection / LOG2_E - _half_square(x, scale)


def _trigonometric(x: Tensor, directions: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """exp(|x|^2 / 2) (sin w.x, cos w.x): bounded features, but products of either sign."""
    return _waves(x, directions * scale), _half_square(x, scale)


def _waves(x: Tensor, directions: Tensor) -> Tensor:
    projections = products.project_onto(x, directions)
    return torch.cat([projections.sin(), projections.cos()], -1) * len(directions) ** -0.5


def _relu(x: Tensor, directions: Tensor, scale: float) -> Tensor:
    return (products.project_onto(x, directions * scale).relu() + RELU_FLOOR) * len(directions) ** -0.5


def _exp2_above_floor(projections: Tensor, offset: Tensor) -> Tensor:
    """2^(projections - offset), bounded below by a small positive number.

    The largest features of a query and of a key may be different ones; with large inputs all products would underflow,
    and the row would have no weight. The square of the bound is a normal number of the dtype.
    """
    floor = torch.finfo(projections.dtype).tiny ** 0.45
    if projections.requires_grad and torch.is_grad_enabled():
        return (projections - offset[..., None]).exp2() + floor
    return projections.sub_(offset[..., None]).exp2_().add_(floor)


def _differentiate_both_powers(features: Tensor, by_features: Tensor) -> Tensor:
    positive, negative = by_features.mul_(features).chunk(2, -1)
    return positive.sub_(negative)


def _differentiate_waves(features: Tensor, by_features: Tensor) -> Tensor:
    sin, cos = features.chunk(2, -1)
    by_sin, by_cos = by_features.chunk(2, -1)
    return by_sin.mul_(cos).addcmul_(by_cos, sin, value=-1)


def _differentiate_relu(features: Tensor, by_features: Tensor) -> Tensor:
    scale = features.shape[-1] ** -0.5
    floor = RELU_FLOOR * scale * (1 + 4 * torch.finfo(features.dtype).eps)  # a feature of 0 may be rounded up
    return by_features.mul_(scale).masked_fill_(features <= floor, 0)


def _half_square(x: Tensor, scale: float) -> Tensor:
    return x.square().sum(-1) * (scale**2 / 2)


class _FeatureFunctions(NamedTuple):
    """features: of ``(x, directions, scale)``. per_direction: the number of features for each direction.
    gradient_along: the gradient by w.x from the features and the gradient by them, which it may overwrite."""

    features: Callable[[Tensor, Tensor, float], Tensor | tuple[Tensor, Tensor]]
    per_direction: int
    gradient_along: Callable[[Tensor, Tensor], Tensor]


_FEATURE_FUNCTIONS: dict[FeatureKind, _FeatureFunctions] = {
    "positive": _FeatureFunctions(_positive, 1, lambda features, by_features: by_features.mul_(features)),
    "trigonometric": _FeatureFunctions(_trigonometric, 2, _differentiate_waves),
    "hyperbolic": _FeatureFunctions(partial(_positive, both_signs=True), 2, _differentiate_both_powers),
    "relu": _FeatureFunctions(_relu, 1, _differentiate_relu),
}
