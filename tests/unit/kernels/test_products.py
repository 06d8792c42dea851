"""Products through oneDNN equal torch's products, with every implementation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from forced_choice import force_implementation

from efficient_attn.kernels import products

TIGHT = {"rtol": 1e-5, "atol": 1e-4}


@pytest.fixture(params=["batched", "by_head", "without oneDNN"])
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "without oneDNN":
        monkeypatch.setattr(products, "has_onednn", lambda: False)
        yield
        return
    if request.param == "by_head" and not products.has_onednn():
        pytest.skip("torch was built without oneDNN")
    with force_implementation(products.PRODUCTS, request.param):
        yield


@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [3, 300])
@pytest.mark.parametrize("columns", [(5, 7), (7, 5)])
def test_products_equal_torchs(rows: int, columns: tuple[int, int], dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    wide, narrow = columns
    x, y = (torch.randn(2, rows, c, generator=g).to(dtype) for c in columns)
    w = torch.randn(2, wide, narrow, generator=g).to(dtype)
    torch.testing.assert_close(products.multiply_rows(x, w), x @ w, **TIGHT)
    torch.testing.assert_close(products.multiply_rows(x, w.mT.contiguous().mT), x @ w, **TIGHT)
    total = torch.ones(2, wide, narrow, dtype=dtype)
    products.add_products(total, x, y)
    torch.testing.assert_close(total, 1 + x.mT @ y, **TIGHT)
    flat = torch.ones(wide, narrow, dtype=dtype)
    products.add_matrix_product(flat, x[0].mT, y[0])
    torch.testing.assert_close(flat, total[0], **TIGHT)
    strided = torch.randn(rows, 3, wide, generator=g).to(dtype)[:, 1]  # rows are not adjacent in memory
    transposed = torch.ones(1, narrow, wide, dtype=dtype)
    products.add_products(transposed, y[:1], strided[None])
    torch.testing.assert_close(transposed[0], 1 + y[0].mT @ strided, **TIGHT)


@pytest.mark.usefixtures("_implementation")
@pytest.mark.parametrize("rows", [3, 300])
def test_project_onto_has_the_gradients_of_matmul(rows: int) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, rows, 6, generator=g, requires_grad=True)
    directions, upstream = torch.randn(9, 6, generator=g), torch.randn(2, rows, 9, generator=g)
    got, want = products.project_onto(x, directions), x @ directions.mT
    torch.testing.assert_close(products.project_onto(x.detach(), directions), want.detach(), **TIGHT)
    torch.testing.assert_close(got, want, **TIGHT)
    grads = [torch.autograd.grad(y, x, upstream)[0] for y in (got, want)]
    torch.testing.assert_close(*grads, **TIGHT)
    learned = directions.clone().requires_grad_()
    (grad,) = torch.autograd.grad(products.project_onto(x, learned), learned, upstream)
    torch.testing.assert_close(grad, (upstream.mT @ x).sum(0), **TIGHT)


@pytest.mark.skipif(not products.has_onednn(), reason="torch was built without oneDNN")
def test_onednn_receives_contiguous_right_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    """With strided rows it is a thousand times slower."""
    operands, real = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda a, b, *rest: operands.append(b) or real(a, b, *rest)
    )
    strided = torch.randn(2, 9, 3, 5)[:, :, 1]
    with force_implementation(products.PRODUCTS, "by_head"):
        products.multiply_rows(torch.randn(2, 4, 9), strided)
        products.add_products(torch.zeros(2, 4, 5), torch.randn(2, 9, 4), strided)
        products.add_matrix_product(torch.zeros(4, 5), torch.randn(4, 9), strided[0])
    assert len(operands) == 5
    assert all(b.is_contiguous() or b.mT.is_contiguous() for b in operands)


def test_project_onto_has_second_derivatives() -> None:
    x, directions = torch.randn(300, 4, requires_grad=True), torch.randn(5, 4)
    (first,) = torch.autograd.grad(products.project_onto(x, directions).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    (plain,) = torch.autograd.grad((x @ directions.mT).square().sum(), x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(plain.square().sum(), x)[0], rtol=1e-4, atol=1e-2)
