"""Feature maps: values, width, gradients, unchanged inputs, and user-defined maps."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn import feature_maps
from efficient_attn.feature_maps import FeatureMap, elu_plus_one
from efficient_attn.testing import CHECKS, Check, Subject, run_check


@pytest.mark.parametrize("graph", [False, True])
def test_elu_plus_one_equals_its_formula_and_is_positive(graph: bool) -> None:
    x = torch.linspace(-20, 20, 101, dtype=torch.float64).view(1, 101).requires_grad_(graph)
    before = x.detach().clone()
    y, log = elu_plus_one(x)
    assert log is None
    assert torch.allclose(y, torch.where(x > 0, x + 1, torch.exp(x)), rtol=0, atol=1e-12)
    assert (y > 0).all()
    assert torch.equal(x.detach(), before)
    assert y.requires_grad == graph


def test_elu_plus_one_keeps_shape_and_dtype() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        y, _ = elu_plus_one(torch.zeros(2, 3, 5, dtype=dtype))
        assert y.dtype == dtype
        assert y.shape[-1] == elu_plus_one.width(5) == 5


def test_elu_plus_one_has_the_right_gradient() -> None:
    x = torch.tensor([-2.0, -0.1, 0.1, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(elu_plus_one.phi, (x,))


def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.relu(), (-x).relu()], -1)


def _double(width: int) -> int:
    return 2 * width


class RectifiedPair(ea.LinearAttention):
    """A map with features of zero, so that rows need not sum to 1."""

    def __init__(self) -> None:
        super().__init__(FeatureMap(_twice, _double))

    @property
    def traits(self) -> ea.Traits:
        return ea.Traits(normalised=False)


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
def test_a_user_defined_map_passes_the_conformance_tests(check: Check) -> None:
    outcome = run_check(check, Subject(lambda dims, seed, backend: RectifiedPair()))
    assert outcome.status != "failed", outcome.reason


def test_state_bytes_depend_on_the_width_of_the_map() -> None:
    attn = RectifiedPair()
    assert ea.state_bytes(attn.init_state(1, 4)) == 0
    attn.dims = ea.Dims(heads=2, head_dim=8, value_dim=5)
    assert ea.state_bytes(attn.init_state(3, 4)) == 3 * 2 * 16 * (5 + 1) * 4
    assert ea.state_bytes(attn.init_state(3, 4000)) == ea.state_bytes(attn.init_state(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["elu_plus_one", "relu", "scaled_identity"])
def test_a_manual_gradient_equals_autograd(name: str, dtype: torch.dtype) -> None:
    phi = getattr(feature_maps, name)
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    features, _ = phi(x)
    upstream = torch.randn(features.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    (want,) = torch.autograd.grad(features, x, upstream)
    got = phi.back(x.detach(), features.detach().clone(), upstream.clone(), None)
    torch.testing.assert_close(got, want)
