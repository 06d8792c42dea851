"""Sums of keys, and queries that read them: any length of a stretch, any weights, float32 or wider, exact gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.feature_maps import FeatureMap, elu_plus_one
from efficient_attn.kernels.linear import linear_config, scan, sums
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig
from efficient_attn.variants.linear.linear_attention import away_from_zero, replace_zero_by_one

RECIPE = LinearConfig(elu_plus_one, replace_zero_by_one)


def tensors(n: int, m: int, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = ((3, 2, n, 4), (3, m, 4), (3, m, 5))
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes)
    return q, k, v


def plain(q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None) -> Tensor:
    y = elu_plus_one(k)[0]
    products = elu_plus_one(q)[0] @ (y if logs is None else y * logs.exp()[..., None]).mT[:, None]
    return products @ v[:, None] / products.sum(-1, keepdim=True)


@pytest.mark.parametrize("numbers", [1, 100, 1 << 18])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_and_reads_at_any_stretch_with_gradients(monkeypatch, numbers: int, weighted: bool) -> None:
    monkeypatch.setattr(linear_config, "MAX_FEATURE_ELEMENTS", numbers)
    monkeypatch.setattr(LinearConfig.cut, "__defaults__", (3,))
    q, k, v = tensors(9, 14)
    logs = torch.randn(3, 14, dtype=torch.float64, requires_grad=True) if weighted else None
    out = sums.read(RECIPE, q, sums.sum_keys(RECIPE, KeyInputs(k, v, None, logs)))
    want = plain(q, k, v, logs)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)
    sources = [x for x in (q, k, v, logs) if x is not None]
    pairs = (torch.autograd.grad(x.cos().sum(), sources) for x in (out, want))
    for got, exact in zip(*pairs, strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)


def test_stretches_cover_all_positions_once() -> None:
    for length in (1, 63, 64, 65, 5000):
        stretches = RECIPE.cut(length, lanes=8, width=256)
        assert [i for r in stretches for i in range(r.start, r.stop)] == list(range(length))
        assert all((r.stop - r.start) % linear_config.MIN_STRETCH == 0 for r in stretches[:-1])


def test_half_precision_is_summed_in_float32() -> None:
    _, k, v = tensors(5, 5, dtype=torch.bfloat16)
    found = sums.sum_keys(RECIPE, KeyInputs(k, v, None, None))
    assert found.kv.dtype == found.z.dtype == torch.float32


def test_half_precision_does_not_lose_a_long_sum() -> None:
    """In bfloat16 a sum stops growing at 256 times its terms."""
    ones = torch.ones(1, 1, 20_000, 8, dtype=torch.bfloat16)
    for causal in (False, True):
        out = ea.attention(ones, ones, ones, variant="linear", is_causal=causal)
        assert (out == 1).all()


def test_divisors_of_either_sign_stay_away_from_zero() -> None:
    total = torch.tensor([2.0, -3.0, 1e-9, -1e-9, 0.0], requires_grad=True)
    found = away_from_zero(total)
    torch.testing.assert_close(found, torch.tensor([2.0, -3.0, 1e-6, -1e-6, 1e-6]), rtol=0, atol=0)
    (slope,) = torch.autograd.grad(found.sum(), total)
    assert slope.tolist() == [1, 1, 0, 0, 0]


class Learned(ea.LinearAttention):
    """A map with parameters of its own, two in all, one of them used twice."""

    def __init__(self) -> None:
        super().__init__(FeatureMap(lambda x: (x @ self.turn).exp() + self.shift.square()))
        self.turn = nn.Parameter(torch.eye(8, dtype=torch.float64) / 2)
        self.shift = nn.Parameter(torch.full((8,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
def test_learned_maps_get_their_gradients(causal: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 200, 8, dtype=torch.float64)
    found = []
    for backend in ("chunked", "dense"):
        attn = Learned()
        attn.backend = backend
        out = attn(q, k, v, ea.Mask(causal=causal))
        found.append(torch.autograd.grad(out.cos().sum(), list(attn.parameters())))
    for got, want in zip(*found, strict=True):
        assert want.abs().max() > 0.01
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


# -- the recurrent form ------------------------------------------------------------------------------------------


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
    want, after = scan.scan(recipe, q, KeyInputs(k, v, None, given))
    past, rows = sums.make_sums(recipe, 3, 4, 5, v, weighted=weights is not None), []
    memory = past.kv.data_ptr()
    for t in range(20):
        at = slice(t, t + 1)
        keys = KeyInputs(k[:, at], v[:, at], None, None if given is None else given[:, at])
        out, past = sums.step(recipe, q[:, :, at], keys, past)
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
