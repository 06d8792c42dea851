"""Random features keep their laws: no bias, the variances that theory gives, and right angles that lower them."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.feature_maps import FeatureMap
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks.long_decoding import gradients_through_steps
from efficient_attn.variants.linear.random_features import (
    FEATURE_KINDS,
    RELU_FLOOR,
    FeatureKind,
    draw_directions,
    make_random_map,
    make_softmax_map,
    make_unit_map,
)

D, M, DRAWS = 16, 16, 2000
ESTIMATES: tuple[FeatureKind, ...] = ("positive", "trigonometric", "hyperbolic")


def pair(angle: float, length: float = 0.5) -> tuple[Tensor, Tensor]:
    """Two vectors of a length, with an angle between them."""
    x, y = torch.zeros(2, D, dtype=torch.float64)
    x[0], y[0], y[1] = length, length * math.cos(angle), length * math.sin(angle)
    return x, y


@cache
def estimates(kind: FeatureKind, angle: float, orthogonal: bool) -> Tensor:
    """phi(x).phi(y) over exp(x.y), once for each of many draws of M directions."""
    x, y = pair(angle)
    found = []
    for seed in range(DRAWS):
        phi = make_random_map(kind, draw_directions(M, D, orthogonal=orthogonal, seed=seed))
        (a, log_a), (b, log_b) = phi(x[None]), phi(y[None])
        assert log_a is not None
        assert log_b is not None
        found.append((a * b).sum(-1) * (log_a + log_b).exp())
    return torch.cat(found) / (x @ y).exp()


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("angle", [0.3, 1.5, 2.8])
@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("kind", ESTIMATES)
def test_no_estimate_is_biased(kind: FeatureKind, orthogonal: bool, angle: float) -> None:
    found = estimates(kind, angle, orthogonal)
    assert abs(found.mean() - 1) < 4 * found.std() / DRAWS**0.5


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("angle", [0.3, 1.5, 2.8])
@pytest.mark.parametrize("kind", ["positive", "trigonometric"])
def test_variances_are_those_of_theory(kind: FeatureKind, angle: float) -> None:
    x, y = pair(angle)
    together, apart = (x + y).square().sum(), (x - y).square().sum()
    law = {"positive": together.exp() - 1, "trigonometric": apart.exp() * (1 - (-apart).exp()) ** 2 / 2}[kind] / M
    found = estimates(kind, angle, False).var()
    assert 0.85 < found / law < 1.18, f"variance {found:.4g}, theory {law:.4g}"


@pytest.mark.slow
def test_right_angles_lower_the_variance() -> None:
    """At |x| = |y| = 0.5 and 16 dimensions that of sines falls to about a seventh; no kind is worse for them."""
    for kind in ESTIMATES:
        ratio = estimates(kind, 1.5, True).var() / estimates(kind, 1.5, False).var()
        assert ratio < {"positive": 1.1, "trigonometric": 0.3, "hyperbolic": 0.5}[kind], kind


@pytest.mark.slow
def test_hyperbolic_features_vary_less_than_positive_ones_of_as_many_directions() -> None:
    assert estimates("hyperbolic", 1.5, False).var() < estimates("positive", 1.5, False).var() / 2


def test_positive_features_are_positive_and_sines_are_not() -> None:
    x = torch.randn(50, D, dtype=torch.float64)
    directions = draw_directions(M, D, orthogonal=True, seed=0)
    for kind in FEATURE_KINDS:
        values, _ = make_random_map(kind, directions)(x)
        assert bool((values > 0).all()) == (kind != "trigonometric"), kind
        assert values.shape[-1] == make_random_map(kind, directions).width(D), kind


def test_a_softmax_maps_products_estimate_exp_of_scaled_scores() -> None:
    x, y = pair(1.0, length=2.0)
    phi = make_softmax_map("hyperbolic", draw_directions(200_000, D, orthogonal=True, seed=0))
    (a, log_a), (b, log_b) = phi(x[None]), phi(y[None])
    assert log_a is not None
    assert log_b is not None
    got = (a * b).sum() * (log_a + log_b).exp()
    torch.testing.assert_close(got.item(), ((x @ y) * D**-0.5).exp().item(), rtol=0.01, atol=0)


def test_a_unit_map_does_not_see_lengths() -> None:
    phi = make_unit_map(draw_directions(M, D, orthogonal=False, seed=0))
    x = torch.randn(5, D, dtype=torch.float64)
    torch.testing.assert_close(phi(x * 7)[0], phi(x)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(phi(x)[0].square().sum(-1), torch.ones(5, dtype=torch.float64))


def test_relu_features_are_their_formula() -> None:
    x, directions = torch.randn(5, D, dtype=torch.float64), draw_directions(M, D, orthogonal=False, seed=0)
    want = ((x @ directions.double().mT).clamp(min=0) + RELU_FLOOR) / M**0.5
    torch.testing.assert_close(make_random_map("relu", directions)(x)[0], want)


def test_directions_are_gaussian_and_at_right_angles_within_a_block() -> None:
    lengths = []
    for seed in range(300):
        w = draw_directions(40, D, orthogonal=True, seed=seed).double()
        for first in (0, 16, 32):
            block = w[first : first + 16]
            gram = block @ block.mT
            assert (gram - gram.diagonal().diag()).abs().max() < 1e-4
        lengths.append(w.square().sum(-1))
    assert abs(torch.cat(lengths).mean() / D - 1) < 0.02  # chi squared with D degrees of freedom
    assert abs(torch.cat(lengths).var() / (2 * D) - 1) < 0.1
    assert torch.equal(draw_directions(40, D, orthogonal=True, seed=7), draw_directions(40, D, orthogonal=True, seed=7))
    assert not torch.equal(
        draw_directions(40, D, orthogonal=True, seed=7), draw_directions(40, D, orthogonal=True, seed=8)
    )


def test_bases_are_uniform_and_not_those_of_the_factorisation() -> None:
    """Without signs from the triangle, a basis' first coordinates would favour one sign."""
    firsts = torch.stack([draw_directions(4, 4, orthogonal=True, seed=s).diagonal() for s in range(2000)])
    assert ((firsts > 0).double().mean(0) - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("kind", ESTIMATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_large_inputs_leave_no_row_without_weight(kind: FeatureKind, dtype: torch.dtype, causal: bool) -> None:
    """At scale 10 the features of a query and a key, each relative to its largest, share none that float32 can hold."""
    g = torch.Generator().manual_seed(1)
    q, k = (10 * torch.randn(1, 2, 2000, 64, generator=g).to(dtype) for _ in range(2))
    attn = ea.create("performer", kind=kind, dims=ea.Dims(head_dim=64)).to(dtype)
    out = attn(q, k, torch.ones_like(q), ea.Mask(causal=causal))
    if kind == "trigonometric":  # some of its rows are moved away from zero instead
        assert ((out - 1).abs() > 1e-3).double().mean() < 0.01
    else:
        assert (out - 1).abs().max() < 1e-3


def test_the_error_of_a_performer_falls_as_one_over_the_root_of_its_features() -> None:
    """Where attention is flat. The slope is measured between 16 and 1024 features."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, 256, 32, generator=g, dtype=torch.float64) for _ in range(3))
    q, k = q / 4, k / 4
    exact, errors, counts = ea.attention(q, k, v), [], (16, 64, 256, 1024)
    for m in counts:
        found = [
            ea.create("performer", n_features=m, dims=ea.Dims(head_dim=32), seed=s).double()(q, k, v) for s in range(4)
        ]
        errors.append(torch.stack([(x - exact).square().mean() for x in found]).mean().sqrt().log())
    slope = (errors[-1] - errors[0]) / math.log(counts[-1] / counts[0])
    assert -0.6 < slope < -0.4


def test_gates_hand_their_gradient_through_the_state() -> None:
    outcome = run_check(gradients_through_steps, Subject("random_feature:gated=true"))
    assert outcome.status == "passed", outcome.reason


# -- gradients by hand: autograd's, by features and by the logarithm of their factor --------------------------------

DIRECTIONS = draw_directions(12, 4, orthogonal=True, seed=0).double()
MAPS = {
    **{f"random {kind}": make_random_map(kind, DIRECTIONS) for kind in FEATURE_KINDS},
    **{f"softmax {kind}": make_softmax_map(kind, DIRECTIONS) for kind in FEATURE_KINDS},
    "unit": make_unit_map(DIRECTIONS),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["positive", "trigonometric", "hyperbolic", "relu"])
def test_gradients_are_those_of_the_reference_for_any_number_of_features(kind: str, dtype: torch.dtype) -> None:
    """Also where 1 / sqrt(m) is rounded: a relu's floor times it is then not the same number in two orders."""
    dims = ea.Dims(heads=2, head_dim=16)
    q, k, v, upstream = (torch.randn(1, 2, 24, 16, dtype=dtype) for _ in range(4))
    for count in range(1, 65):
        grads = []
        for backend in ("chunked", "dense"):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            out = ea.create(f"performer:n_features={count}:kind={kind}:backend={backend}", dims=dims)(*leaves)
            grads.append(torch.autograd.grad((out * upstream).sum(), leaves))
        for one, other in zip(*grads, strict=True):
            size = other.abs().max().clamp(min=1)
            torch.testing.assert_close(one / size, other / size, rtol=0, atol=2e-3 if dtype == torch.float32 else 1e-9)
