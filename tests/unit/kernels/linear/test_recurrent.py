"""A step at a time is the scan: same rows, same sums, updated in place."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.feature_maps import elu_plus_one
from efficient_attn.kernels.linear import recurrent, scan, sums
from efficient_attn.kernels.linear.linear_config import LinearConfig
from efficient_attn.variants.linear.linear_attention import replace_zero_by_one


@pytest.mark.parametrize("weights", [None, "gates", "decays"])
@pytest.mark.parametrize("divided", [True, False])
def test_steps_are_the_scan(weights: str | None, divided: bool) -> None:
    recipe = LinearConfig(elu_plus_one, replace_zero_by_one if divided else None, decays=weights == "decays")
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 2, 20, 4), (3, 20, 4), (3, 20, 5)))
    logs = {
        "gates": 300 * torch.randn(3, 20, generator=g).double(),
        "decays": torch.arange(20.0).expand(3, -1).double(),
    }
    given = None if weights is None else logs[weights]
    want, after = scan.scan(recipe, q, k, v, None, given)
    past, rows = sums.make_sums(recipe, 3, 4, 5, v, weighted=weights is not None), []
    memory = past.kv.data_ptr()
    for t in range(20):
        at = slice(t, t + 1)
        out, past = recurrent.step(
            recipe, q[:, :, at], k[:, at], v[:, at], None if given is None else given[:, at], past
        )
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, 2), want, rtol=0, atol=1e-12)
    torch.testing.assert_close(past.kv, after.kv, rtol=0, atol=1e-11)
    torch.testing.assert_close(past.z, after.z, rtol=0, atol=1e-11)
    assert past.kv.data_ptr() == memory


@pytest.mark.parametrize("spec", ["linear", "performer", "retention"])
def test_a_step_whose_gradient_is_wanted_has_one(spec: str) -> None:
    """The other way round for a step: the scan, which leaves the state before it alone."""
    attn = ea.create(spec, dims=ea.Dims(heads=2, head_dim=4)).double()
    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    want = attn(q, k, v, ea.Mask(causal=True))
    state, rows = attn.init_state(1, 3, torch.float64), []
    for t in range(3):
        at = slice(t, t + 1)
        out, state = attn.step(q[:, :, at], k[:, :, at], v[:, :, at], state)
        rows.append(out)
    got = torch.cat(rows, 2)
    for a, b in zip(*(torch.autograd.grad(x.cos().sum(), (q, k, v)) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
