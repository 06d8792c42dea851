"""Random features: unbiased estimates, variances from theory, orthogonal directions, and gradients."""

from __future__ import annotations

import math
from functools import cache
from typing import get_args

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.feature_maps import FeatureMap
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks.decoding import gradients_through_steps
from efficient_attn.variants.linear.random_features import (
    RELU_FLOOR,
    FeatureKind,
    draw_directions,
    make_random_map,
    make_unit_map,
)

FEATURE_KINDS = get_args(FeatureKind)

D, M, DRAWS = 16, 16, 2000
ESTIMATES: tuple[FeatureKind, ...] = ("positive", "trigonometric", "hyperbolic")


def pair(angle: float, length: float = 0.5) -> tuple[Tensor, Tensor]:
    """Two vectors of equal norm with an angle between them."""
    x, y = torch.zeros(2, D, dtype=torch.float64)
    x[0], y[0], y[1] = length, length * math.cos(angle), length * math.sin(angle)
    return x, y


@cache
def estimates(kind: FeatureKind, angle: float, orthogonal: bool) -> Tensor:
    """phi(x).phi(y) / exp(x.y) for each of many draws of M directions."""
    x, y = pair(angle)
    rows = []
    for seed in range(DRAWS):
        phi = make_random_map(kind, draw_directions(M, D, orthogonal=orthogonal, seed=seed))
        (a, log_a), (b, log_b) = phi(x[None]), phi(y[None])
        assert log_a is not None
        assert log_b is not None
        rows.append((a * b).sum(-1) * (log_a + log_b).exp())
    return torch.cat(rows) / (x @ y).exp()


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("angle", [0.3, 1.5, 2.8])
@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("kind", ESTIMATES)
def test_estimates_are_unbiased(kind: FeatureKind, orthogonal: bool, angle: float) -> None:
    ratios = estimates(kind, angle, orthogonal)
    assert abs(ratios.mean() - 1) < 4 * ratios.std() / DRAWS**0.5


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("angle", [0.3, 1.5, 2.8])
@pytest.mark.parametrize("kind", ["positive", "trigonometric"])
def test_variances_equal_theory(kind: FeatureKind, angle: float) -> None:
    x, y = pair(angle)
    squared_sum, squared_difference = (x + y).square().sum(), (x - y).square().sum()
    theory = {
        "positive": squared_sum.exp() - 1,
        "trigonometric": squared_difference.exp() * (1 - (-squared_difference).exp()) ** 2 / 2,
    }[kind] / M
    variance = estimates(kind, angle, False).var()
    assert 0.85 < variance / theory < 1.18, f"variance {variance:.4g}, theory {theory:.4g}"


@pytest.mark.slow
def test_orthogonal_directions_lower_the_variance() -> None:
    """At |x| = |y| = 0.5 and 16 dimensions, the variance of trigonometric features falls to about a seventh."""
    for kind in ESTIMATES:
        ratio = estimates(kind, 1.5, True).var() / estimates(kind, 1.5, False).var()
        assert ratio < {"positive": 1.1, "trigonometric": 0.3, "hyperbolic": 0.5}[kind], kind


@pytest.mark.slow
def test_hyperbolic_features_vary_less_than_positive_features() -> None:
    assert estimates("hyperbolic", 1.5, False).var() < estimates("positive", 1.5, False).var() / 2


def test_features_are_positive_except_trigonometric_ones() -> None:
    x = torch.randn(50, D, dtype=torch.float64)
    directions = draw_directions(M, D, orthogonal=True, seed=0)
    for kind in FEATURE_KINDS:
        values, _ = make_random_map(kind, directions)(x)
        assert bool((values > 0).all()) == (kind != "trigonometric"), kind
        assert values.shape[-1] == make_random_map(kind, directions).width(D), kind


def test_softmax_map_estimates_exp_of_scaled_scores() -> None:
    x, y = pair(1.0, length=2.0)
    phi = make_random_map("hyperbolic", draw_directions(200_000, D, orthogonal=True, seed=0), scaled=True)
    (a, log_a), (b, log_b) = phi(x[None]), phi(y[None])
    assert log_a is not None
    assert log_b is not None
    got = (a * b).sum() * (log_a + log_b).exp()
    torch.testing.assert_close(got.item(), ((x @ y) * D**-0.5).exp().item(), rtol=0.01, atol=0)


def test_unit_map_ignores_norms() -> None:
    phi = make_unit_map(draw_directions(M, D, orthogonal=False, seed=0))
    x = torch.randn(5, D, dtype=torch.float64)
    torch.testing.assert_close(phi(x * 7)[0], phi(x)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(phi(x)[0].square().sum(-1), torch.ones(5, dtype=torch.float64))


def test_relu_features_equal_the_formula() -> None:
    x, directions = torch.randn(5, D, dtype=torch.float64), draw_directions(M, D, orthogonal=False, seed=0)
    want = ((x @ directions.double().mT).clamp(min=0) + RELU_FLOOR) / M**0.5
    torch.testing.assert_close(make_random_map("relu", directions)(x)[0], want)


def test_directions_are_gaussian_and_orthogonal_within_a_block() -> None:
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


def test_orthogonal_bases_are_uniformly_distributed() -> None:
    """Without the signs of R in the QR factorisation, the first coordinates would favour one sign."""
    firsts = torch.stack([draw_directions(4, 4, orthogonal=True, seed=s).diagonal() for s in range(2000)])
    assert ((firsts > 0).double().mean(0) - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("kind", ESTIMATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_large_inputs_keep_weights_in_all_rows(kind: FeatureKind, dtype: torch.dtype, causal: bool) -> None:
    """At scale 10, the products of features of a query and a key underflow in float32."""
    g = torch.Generator().manual_seed(1)
    q, k = (10 * torch.randn(1, 2, 2000, 64, generator=g).to(dtype) for _ in range(2))
    attn = ea.create("performer", kind=kind, dims=ea.Dims(head_dim=64)).to(dtype)
    out = attn(q, k, torch.ones_like(q), ea.Mask(causal=causal))
    if kind == "trigonometric":  # some denominators are moved away from zero
        assert ((out - 1).abs() > 1e-3).double().mean() < 0.01
    else:
        assert (out - 1).abs().max() < 1e-3


def test_performer_error_falls_with_the_root_of_the_features() -> None:
    """For nearly uniform attention; the slope is measured between 16 and 1024 features."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 8, 256, 32, generator=g, dtype=torch.float64) for _ in range(3))
    q, k = q / 4, k / 4
    exact, errors, counts = ea.attention(q, k, v), [], (16, 64, 256, 1024)
    for m in counts:
        outs = [
            ea.create("performer", n_features=m, dims=ea.Dims(head_dim=32), seed=s).double()(q, k, v) for s in range(4)
        ]
        errors.append(torch.stack([(x - exact).square().mean() for x in outs]).mean().sqrt().log())
    slope = (errors[-1] - errors[0]) / math.log(counts[-1] / counts[0])
    assert -0.6 < slope < -0.4


def test_gradients_of_gates_flow_through_the_state() -> None:
    outcome = run_check(gradients_through_steps, Subject("random_feature:gated=true"))
    assert outcome.status == "passed", outcome.reason


# -- manual gradients with respect to features and the logarithm of their factor -----------------------------------

DIRECTIONS = draw_directions(12, 4, orthogonal=True, seed=0).double()
MAPS = {
    **{f"random {kind}": make_random_map(kind, DIRECTIONS) for kind in FEATURE_KINDS},
    **{f"softmax {kind}": make_random_map(kind, DIRECTIONS, scaled=True) for kind in FEATURE_KINDS},
    "unit": make_unit_map(DIRECTIONS),
}


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("size", [0.3, 3.0])
@pytest.mark.parametrize("phi", MAPS.values(), ids=MAPS)
def test_manual_gradients_of_feature_maps_equal_autograd(phi: FeatureMap, size: float, hidden: bool) -> None:
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


def test_zero_inputs_of_the_unit_map_have_finite_gradients() -> None:
    x = torch.zeros(1, 4, dtype=torch.float64)
    features, _ = MAPS["unit"](x)
    back = MAPS["unit"].back
    assert back is not None
    assert torch.isfinite(back(x, features, torch.ones_like(features), None)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["positive", "trigonometric", "hyperbolic", "relu"])
def test_gradients_equal_the_reference_for_any_number_of_features(kind: str, dtype: torch.dtype) -> None:
    """Includes counts whose 1 / sqrt(m) is rounded, where the floor of relu depends on the order of products."""
    dims = ea.Dims(heads=2, head_dim=16)
    q, k, v, upstream = (torch.randn(1, 2, 24, 16, dtype=dtype) for _ in range(4))
    for count in range(1, 65):
        grads = []
        for backend in ("chunked", "dense"):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            out = ea.create(f"performer:n_features={count}:kind={kind}:backend={backend}", dims=dims)(*leaves)
            grads.append(torch.autograd.grad((out * upstream).sum(), leaves))
        for got, want in zip(*grads, strict=True):
            size = want.abs().max().clamp(min=1)
            torch.testing.assert_close(got / size, want / size, rtol=0, atol=2e-3 if dtype == torch.float32 else 1e-9)


@pytest.mark.parametrize(
    ("count", "width", "gated"),
    [(1, 64, False), (4, 8, False), (15, 8, False), (16, 8, False), (1, 64, True), (24, 64, True), (64, 8, True)],
)
def test_float32_has_small_errors_where_weights_along_few_directions_cancel(
    count: int, width: int, gated: bool
) -> None:
    attn = ea.create(f"random_feature:n_features={count}:gated={gated}", dims=ea.Dims(heads=4, head_dim=width))
    wide = ea.create(f"random_feature:n_features={count}:gated={gated}", dims=ea.Dims(heads=4, head_dim=width))
    wide, mask = wide.double(), ea.Mask(causal=True)
    for seed in range(4):
        generator, state = torch.Generator().manual_seed(seed), attn.init_state(2, 130)
        q, k, v = (torch.randn(2, 4, 130, width, generator=generator) for _ in range(3))
        gate = {"gate": torch.randn(2, 4, 130, generator=generator)} if gated else {}
        want = wide(*(x.double() for x in (q, k, v)), mask, **{name: x.double() for name, x in gate.items()})
        steps = []
        for i in range(130):
            now = slice(i, i + 1)
            step_gate = {name: x[:, :, now] for name, x in gate.items()}
            out, state = attn.step(q[:, :, now], k[:, :, now], v[:, :, now], state, **step_gate)
            steps.append(out)
        for got in (attn(q, k, v, mask, **gate), torch.cat(steps, 2)):
            errors = (got - want).abs().amax(-1) / want.abs().amax(-1).clamp(min=0.1 * float(v.abs().max()))
            assert errors.max() < 2e-5
