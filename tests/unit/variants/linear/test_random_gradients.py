"""The gradients of random features by hand: autograd's, by features and by the logarithm of their factor."""

from __future__ import annotations

import pytest
import torch

from efficient_attn.feature_maps import FeatureMap
from efficient_attn.variants.linear.random_features import KINDS, draw_directions, random_map, softmax_map, unit_map

DIRECTIONS = draw_directions(12, 4, orthogonal=True, seed=0).double()
MAPS = {
    **{f"random {kind}": random_map(kind, DIRECTIONS) for kind in KINDS},
    **{f"softmax {kind}": softmax_map(kind, DIRECTIONS) for kind in KINDS},
    "unit": unit_map(DIRECTIONS),
}


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("size", [0.3, 3.0])
@pytest.mark.parametrize("phi", MAPS.values(), ids=MAPS)
def test_a_gradient_by_hand_is_autograds(phi: FeatureMap, size: float, hidden: bool) -> None:
    g = torch.Generator().manual_seed(0)
    x = (size * torch.randn(2, 7, 4, generator=g, dtype=torch.float64)).requires_grad_()
    features, logarithm = phi(x)
    if hidden:
        features = features * torch.tensor([1.0, 0, 1, 1, 0, 0, 1])[:, None]
    by_features = torch.randn(features.shape, generator=g, dtype=torch.float64)
    by_logarithm = None if logarithm is None else torch.randn(logarithm.shape, generator=g, dtype=torch.float64)
    if by_logarithm is not None and hidden:
        by_logarithm = by_logarithm * torch.tensor([1.0, 0, 1, 1, 0, 0, 1])
    outputs = [y for y in (features, logarithm) if y is not None]
    (want,) = torch.autograd.grad(outputs, x, [by for by in (by_features, by_logarithm) if by is not None])
    assert phi.back is not None
    got = phi.back(x.detach(), features.detach().clone(), by_features.clone(), by_logarithm)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_row_of_zeros_has_a_finite_gradient() -> None:
    x = torch.zeros(1, 4, dtype=torch.float64)
    features, _ = MAPS["unit"](x)
    back = MAPS["unit"].back
    assert back is not None
    assert torch.isfinite(back(x, features, torch.ones_like(features), None)).all()
