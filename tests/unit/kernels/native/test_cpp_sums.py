"""Bidirectional linear attention in C++: results and gradients equal those of exact arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.feature_maps import FeatureMap, elu_plus_one, relu
from efficient_attn.kernels.native import cpp_sums
from efficient_attn.kernels.native.building import why_no_native

REASON = why_no_native("sums")
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

# heads, group, queries, keys, width, columns: multiples of vectors and of rows; no multiples; more than a tile; few
SIZES = [(2, 1, 128, 64, 16, 16), (3, 2, 100, 70, 5, 7), (2, 3, 37, 200, 64, 64), (1, 1, 1, 1, 1, 1),
         (2, 1, 65, 3, 70, 90), (1, 2, 15, 300, 24, 8), (2, 1, 63, 127, 128, 128)]  # fmt: skip
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def _draw(size: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    heads, group, n, m, width, columns = size
    generator = torch.Generator().manual_seed(sum(size))
    sizes = (heads, group, n, width), (heads, m, width), (heads, m, columns), (heads, group, n, columns)
    q, k, v, grad = (torch.randn(s, generator=generator).to(dtype) for s in sizes)
    return [q, k, v, grad.float()]


def _compute(phi: FeatureMap, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, divides: bool) -> Tensor:
    """The definition, in the dtype of its inputs."""
    (x, _), (y, _) = phi(q), phi(k)
    weights = x @ y[:, None].mT
    weights = weights if valid is None else weights * valid[:, None, None]
    totals = weights.sum(-1, keepdim=True)
    return weights @ v[:, None] / (totals.masked_fill(totals == 0, 1) if divides else 1)


def _assert_close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    scale = want.abs().max().clamp(min=0.1)  # gradients by a single key cancel
    torch.testing.assert_close(got.double() / scale, want / scale, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("phi", [relu, elu_plus_one])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_results_and_gradients_equal_the_definition(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, ...], dtype: torch.dtype, phi: FeatureMap, threads: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    q, k, v, grad = _draw(size, dtype)
    hidden = torch.arange(k.shape[1]).expand(k.shape[:2]) % 3 != 1
    for valid, divides in ((None, True), (hidden, True), (hidden & False, True), (hidden, False)):
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        want = _compute(phi, *exact, valid, divides)
        results = cpp_sums.attend(phi, q, k, v, valid, divides=divides)
        _assert_close(results[0], want.detach(), dtype)
        assert results[0].dtype == torch.float32  # the backward pass reads it, and would amplify its rounding
        grads = cpp_sums.backward(phi, grad, (q, k, v, valid), results, divides=divides)
        for got, exact_grad in zip(grads, torch.autograd.grad(want, exact, grad.double()), strict=True):
            assert got.dtype == dtype
            _assert_close(got, exact_grad, dtype)


@pytest.mark.parametrize("divides", [True, False])
def test_strided_and_expanded_tensors_are_supported(divides: bool) -> None:
    q, k, v, grad = _draw((2, 3, 40, 50, 16, 16), torch.float32)
    strided = q.transpose(1, 2).contiguous().transpose(1, 2), k.mT.contiguous().mT, v[:1].expand(2, -1, -1)
    valid, plain = (torch.arange(50) < 40).expand(2, 50).mT.contiguous().mT, [x.contiguous() for x in strided]
    both = [cpp_sums.attend(relu, *x, valid, divides=divides) for x in (strided, plain)]
    for got, want in zip(*both, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    grads = [grad[:1, :1].expand(grad.shape), grad[:1, :1].repeat(2, 3, 1, 1)]
    pairs = [
        cpp_sums.backward(relu, g, (*x, valid), both[0], divides=divides)
        for g, x in zip(grads, (strided, plain), strict=True)
    ]
    torch.testing.assert_close(*pairs, rtol=0, atol=0)


def test_inputs_are_not_changed() -> None:
    tensors = _draw((2, 1, 40, 50, 16, 16), torch.float32)
    before = [x.clone() for x in tensors]
    q, k, v, grad = tensors
    results = cpp_sums.attend(elu_plus_one, q, k, v, None, divides=True)
    copies = [x.clone() for x in results]
    cpp_sums.backward(elu_plus_one, grad, (q, k, v, None), results, divides=True)
    assert all(map(torch.equal, (*tensors, *results), (*before, *copies)))


def test_features_of_all_sizes_equal_those_of_torch() -> None:
    """z of a single key is its features: also subnormal, infinite and undefined ones."""
    x = torch.tensor([-1e30, -120, -103.9, -103, -100, -95, -88, -87.3, -87, -30, -1, -1e-4, -0.0, 1e-30, 3, 1e30])
    extremes = torch.tensor([float("-inf"), float("inf"), float("nan")])
    for values in (x, extremes):
        ones = torch.ones(1, 1, 1, len(values)), torch.ones(1, 1, 1)
        _, _, _, z = cpp_sums.attend(elu_plus_one, ones[0], values[None, None], ones[1], None, divides=True)
        want = (values.double().clamp(max=0).exp() + values.double().relu()).float()
        torch.testing.assert_close(z[0, : len(values)], want, rtol=3e-7, atol=2e-45, equal_nan=True)


@pytest.mark.parametrize("size", [1e-20, 1e-38, 1e-43])
def test_rows_of_tiny_weights_are_divided_exactly(size: float) -> None:
    """The reciprocal of a subnormal sum would be infinite."""
    q, k, v = torch.full((1, 1, 2, 4), size), torch.ones(1, 3, 4), torch.tensor([[[1.0], [2.0], [6.0]]])
    out, *_ = cpp_sums.attend(relu, q, k, v, None, divides=True)
    torch.testing.assert_close(out, torch.full((1, 1, 2, 1), 3.0), rtol=0.05 if size < 1e-40 else 1e-6, atol=0)


def test_long_sums_round_little() -> None:
    """Equal numbers, added one after another in float32, would be off by 1e-4."""
    m = 300_000
    q, k, v = torch.ones(1, 1, 1, 2), torch.full((1, m, 2), 0.1), torch.full((1, m, 1), 0.3)
    _, _, kv, z = cpp_sums.attend(relu, q, k, v, None, divides=True)
    torch.testing.assert_close(z[0, :2].double(), k.double().sum(1)[0], rtol=4e-6, atol=0)
    torch.testing.assert_close(kv[0, :2, 0].double(), (k.double() * v.double()).sum(1)[0], rtol=4e-6, atol=0)


@pytest.mark.parametrize("heads", [1, 4])
def test_threads_of_large_calls_compute_the_same(monkeypatch: pytest.MonkeyPatch, heads: int) -> None:
    """Small calls start none."""
    q, k, v, grad = _draw((heads, 2, 4200, 4100, 64, 64), torch.float32)
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        outputs = cpp_sums.attend(elu_plus_one, q, k, v, None, divides=True)
        results.append((*outputs, *cpp_sums.backward(elu_plus_one, grad, (q, k, v, None), outputs, divides=True)))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            torch.testing.assert_close(got / want.abs().max(), want / want.abs().max(), rtol=0, atol=3e-6)
