"""Sums over keys and their reads: any stretch, any weights, float32 or wider, exact gradients, and recurrent steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import efficient_attn as ea
from efficient_attn.feature_maps import FeatureMap, elu_plus_one
from efficient_attn.kernels.linear import decode_step, linear_config, scan, sums
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig, replace_zero_by_one
from efficient_attn.variants.linear.linear_attention import away_from_zero

CONFIG = LinearConfig(elu_plus_one, replace_zero_by_one)


def tensors(n: int, m: int, *, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = ((3, 2, n, 4), (3, m, 4), (3, m, 5))
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes)
    return q, k, v


def plain(q: Tensor, k: Tensor, v: Tensor, logs: Tensor | None) -> Tensor:
    y = elu_plus_one(k)[0]
    products = elu_plus_one(q)[0] @ (y if logs is None else y * logs.exp()[..., None]).mT[:, None]
    return products @ v[:, None] / products.sum(-1, keepdim=True)


@pytest.mark.parametrize("elements", [1, 100, 1 << 18])
@pytest.mark.parametrize("weighted", [False, True])
def test_reads_of_sums_equal_reference_for_any_stretch(monkeypatch, elements: int, weighted: bool) -> None:
    monkeypatch.setattr(linear_config, "MAX_FEATURE_ELEMENTS", elements)
    monkeypatch.setattr(LinearConfig.cut, "__defaults__", (3,))
    q, k, v = tensors(9, 14)
    logs = torch.randn(3, 14, dtype=torch.float64, requires_grad=True) if weighted else None
    out = sums.read(CONFIG, q, sums.sum_keys(CONFIG, KeyInputs(k, v, None, logs)))
    want = plain(q, k, v, logs)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)
    sources = [x for x in (q, k, v, logs) if x is not None]
    pairs = (torch.autograd.grad(x.cos().sum(), sources) for x in (out, want))
    for got, exact in zip(*pairs, strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-12)


def test_stretches_cover_all_positions_once() -> None:
    for length in (1, 63, 64, 65, 5000):  # a GPU takes more together, so that few kernels are launched
        assert len(CONFIG.cut(torch.empty(64, length, 64, device="meta"))) == 1
        stretches = CONFIG.cut(torch.empty(8, length, 256))
        assert [i for r in stretches for i in range(r.start, r.stop)] == list(range(length))
        assert all((r.stop - r.start) % linear_config.MIN_STRETCH == 0 for r in stretches[:-1])


def test_half_precision_is_summed_in_float32() -> None:
    _, k, v = tensors(5, 5, dtype=torch.bfloat16)
    total = sums.sum_keys(CONFIG, KeyInputs(k, v, None, None))
    assert total.kv.dtype == total.z.dtype == torch.float32


def test_long_sums_in_half_precision_are_exact() -> None:
    """In bfloat16 a sum stops growing at 256 times its terms."""
    ones = torch.ones(1, 1, 20_000, 8, dtype=torch.bfloat16)
    for causal in (False, True):
        out = ea.attention(ones, ones, ones, variant="linear", is_causal=causal)
        assert (out == 1).all()


def test_away_from_zero_bounds_divisors_of_either_sign() -> None:
    total = torch.tensor([2.0, -3.0, 1e-9, -1e-9, 0.0], requires_grad=True)
    bounded = away_from_zero(total)
    torch.testing.assert_close(bounded, torch.tensor([2.0, -3.0, 1e-6, -1e-6, 1e-6]), rtol=0, atol=0)
    (slope,) = torch.autograd.grad(bounded.sum(), total)
    assert slope.tolist() == [1, 1, 0, 0, 0]


class Learned(ea.LinearAttention):
    """Linear attention with a feature map that has two parameters."""

    def __init__(self) -> None:
        super().__init__(FeatureMap(lambda x: (x @ self.turn).exp() + self.shift.square()))
        self.turn = nn.Parameter(torch.eye(8, dtype=torch.float64) / 2)
        self.shift = nn.Parameter(torch.full((8,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("causal", [False, True])
def test_learned_feature_maps_get_gradients(causal: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 200, 8, dtype=torch.float64)
    grads = []
    for backend in ("chunked", "dense"):
        attn = Learned()
        attn.backend = backend
        out = attn(q, k, v, ea.Mask(causal=causal))
        grads.append(torch.autograd.grad(out.cos().sum(), list(attn.parameters())))
    for got, want in zip(*grads, strict=True):
        assert want.abs().max() > 0.01
        torch.testing.assert_close(got, want, rtol=0, atol=1e-9)


# -- recurrent steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, "gates", "decays"])
@pytest.mark.parametrize("divided", [True, False])
def test_steps_equal_the_scan(weights: str | None, divided: bool) -> None:
    config = LinearConfig(elu_plus_one, replace_zero_by_one if divided else None, decays=weights == "decays")
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 2, 20, 4), (3, 20, 4), (3, 20, 5)))
    logs = {
        "gates": 300 * torch.randn(3, 20, generator=g).double(),
        "decays": torch.arange(20.0).expand(3, -1).double(),
    }
    log_weights = None if weights is None else logs[weights]
    want, after = scan.scan(config, q, KeyInputs(k, v, None, log_weights))
    past, rows = sums.make_sums(config, 3, 4, 5, v, weighted=weights is not None), []
    memory = past.kv.data_ptr()
    for t in range(20):
        position = slice(t, t + 1)
        keys = KeyInputs(
            k[:, position], v[:, position], None, None if log_weights is None else log_weights[:, position]
        )
        out, past = decode_step.step(config, q[:, :, position], keys, past)
        rows.append(out)
    torch.testing.assert_close(torch.cat(rows, 2), want, rtol=0, atol=1e-12)
    torch.testing.assert_close(past.kv, after.kv, rtol=0, atol=1e-11)
    torch.testing.assert_close(past.z, after.z, rtol=0, atol=1e-11)
    assert past.kv.data_ptr() == memory


@pytest.mark.parametrize("spec", ["linear", "performer", "retention"])
def test_steps_have_gradients(spec: str) -> None:
    """If gradients are required, a step runs the scan, which does not modify the previous state."""
    attn = ea.create(spec, dims=ea.Dims(heads=2, head_dim=4)).double()
    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    want = attn(q, k, v, ea.Mask(causal=True))
    state, rows = attn.init_state(1, 3, torch.float64), []
    for t in range(3):
        position = slice(t, t + 1)
        out, state = attn.step(q[:, :, position], k[:, :, position], v[:, :, position], state)
        rows.append(out)
    got = torch.cat(rows, 2)
    for a, b in zip(*(torch.autograd.grad(x.cos().sum(), (q, k, v)) for x in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


class Signed(ea.LinearAttention):
    """Linear attention with products of either sign."""

    def __init__(self) -> None:
        super().__init__(FeatureMap(torch.clone, signed=True))


@pytest.mark.parametrize(("length", "causal"), [(128, False), (128, True), (700, False), (700, True)])
@pytest.mark.parametrize(("small", "grad"), [(2**-7, 0.0), (0.0, 0.0), (0.0, 2**-14)])
def test_outputs_that_float16_cannot_represent_leave_other_gradients(
    length: int, causal: bool, small: float, grad: float
) -> None:
    """The last row's weights sum to nearly zero; the others' are positive. Its gradient reaches all keys."""
    sign = torch.tensor([1.0, -1.0]).repeat(length // 2)
    q, k = torch.tensor([0.0, 1.0]).repeat(length, 1), torch.stack([sign, torch.full((length,), 2**-10)], 1)
    q[-1] = torch.tensor([1.0, small])
    tensors = [x[None, None].half().requires_grad_() for x in (q, k, 30 * sign[:, None].expand(-1, 3))]
    grads = []
    for backend in (None, "dense"):
        attn = Signed()
        attn.backend = backend
        out = attn(*tensors, ea.Mask(causal=causal))
        assert out[:, :, -1].isinf().all()
        assert out[:, :, :-1].isfinite().all()
        incoming = torch.full_like(out, 2**-6)
        incoming[:, :, -1] = grad
        grads.append(torch.autograd.grad(out, tensors, incoming))
    assert all(want.isfinite().all() for want in grads[1][1:])
    for got, want in zip(*grads, strict=True):  # the last row's query may have an infinite gradient
        torch.testing.assert_close(got, want, rtol=4e-3, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [16, 700])
def test_no_row_depends_on_its_only_feature(n: int, causal: bool, dtype: torch.dtype) -> None:
    """It cancels. With outputs rounded to bfloat16 in the backward pass the gradient would be about 1 here."""
    q, k, v = torch.randn(3, 1, 2, n, 8)
    q = -q.abs()
    q[..., 3] = 2.0**-8
    q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
    out = ea.create("relu_linear")(q, k, v, ea.Mask(causal=causal))
    assert out.dtype == dtype
    (grad,) = torch.autograd.grad(out.sum(), q)
    seen = (k.relu()[..., 3].cumsum(2) > 0) if causal else torch.ones(1, 2, n, dtype=torch.bool)
    assert grad[seen].abs().max() < 0.02
