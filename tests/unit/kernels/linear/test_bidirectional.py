"""When bidirectional calls of linear attention run in C++, and that these equal the reference."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import efficient_attn as ea
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.linear import bidirectional
from efficient_attn.kernels.native.building import VARIABLE, why_no_native

REASON = why_no_native("sums")
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture(autouse=True)
def with_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ is selected by rule; other tests switch it off."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(autotuner, "CHOICES", {})


def _draw(n: int = 40, m: int = 50, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(s, generator=generator).to(dtype) for s in ((2, 4, n, 8), (2, 2, m, 8), (2, 2, m, 6))]


@pytest.mark.parametrize("spec", ["linear", "relu_linear", "linear:backend=cpp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_selected_calls_equal_the_reference(spec: str, dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in _draw(dtype=dtype))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    attn, dense = ea.create(spec), ea.create(spec.partition(":")[0], backend="dense")
    mask = ea.Mask(key_lengths=torch.tensor([50, 7]))
    out, want = attn(q, k, v, mask), dense(*exact, mask)
    assert autotuner.list_choices() == ("" if "cpp" in spec else "sums=cpp")
    tolerance = 3e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    pairs = zip(torch.autograd.grad(out, (q, k, v), grad), torch.autograd.grad(want, exact, grad.double()), strict=True)
    for got, exact_result in ((out, want), *pairs):
        assert got.dtype == dtype
        size = exact_result.abs().max()
        torch.testing.assert_close(got.double() / size, exact_result / size, rtol=0, atol=tolerance)


@pytest.mark.parametrize("spec", ["cosformer", "taylor", "performer:n_features=16", "random_feature", "retention"])
def test_other_maps_run_in_torch(spec: str) -> None:
    q, k, v = _draw(50)
    attn = ea.create(spec, dims=ea.Dims(heads=4, kv_heads=2, head_dim=8, max_len=50))
    attn(q, k, v, ea.Mask(causal=spec == "retention"))
    assert "sums=cpp" not in autotuner.list_choices()


def test_other_calls_run_in_torch() -> None:
    q, k, v = _draw()
    attn = ea.create("linear")
    attn(q.double(), k.double(), v.double())
    attn(q[:, :, :50], k, v, ea.Mask(causal=True))
    torch.func.grad(lambda x: attn(x, k, v).sum())(q)
    with FakeTensorMode() as mode:
        out = attn(*(mode.from_tensor(x) for x in (q, k, v)))
    assert out.shape == (2, 4, 40, 6)
    assert "sums=cpp" not in autotuner.list_choices()


def test_mixed_dtypes_run_in_torch_or_are_refused() -> None:
    q, k, v = _draw()
    config = ea.create("linear").make_config(0, 0, None)  # type: ignore[attr-defined]
    folded = q.view(4, 2, 40, 8), bidirectional.KeyInputs(k.flatten(0, 1).bfloat16(), v.flatten(0, 1))
    assert not bidirectional.is_chosen(config, *folded)


def test_a_copied_mechanism_is_recognized() -> None:
    q, k, v = _draw()
    pickle.loads(pickle.dumps(ea.create("linear")))(q, k, v)
    assert autotuner.list_choices() == "sums=cpp"


def test_a_second_derivative_is_refused() -> None:
    q, k, v = (x.requires_grad_() for x in _draw())
    (grad,) = torch.autograd.grad(ea.create("linear")(q, k, v).cos().sum(), q, create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="has no second derivative"):
        grad.sum().backward()


def test_both_candidates_are_timed() -> None:
    for point in bidirectional.SUMS.points:
        if "gradients" in point.kind or point.sizes[0] > 4:
            continue
        assert set(bidirectional.SUMS.make_candidates(point)) == {"torch", "cpp"}
