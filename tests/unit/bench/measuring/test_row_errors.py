"""Results are compared row by row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.bench.measuring.row_errors import TOLERANCE, InvalidResult, compare

DTYPES = sorted(TOLERANCE)


def _draw(seed: int = 0, shape: tuple[int, ...] = (2, 3, 96, 16), dtype: str = "float32") -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        getattr(torch, dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1.0, 1e-3, 1e3])
def test_one_wrong_row_is_reported_whatever_its_size(dtype: str, size: float) -> None:
    expected = _draw(dtype=dtype)
    expected[1, 2, 17] *= size
    out = expected.clone()
    assert compare(out, expected, dtype) == 0
    out[1, 2, 17] *= 1 + 3 * TOLERANCE[dtype]
    with pytest.raises(InvalidResult, match=r"^the output differs from the reference in 1 of 576 rows: relative error"):
        compare(out, expected, dtype)


def test_low_precision_in_one_row_of_many_is_reported() -> None:
    expected = _draw(shape=(1, 8, 4000, 64))
    out = expected.clone()
    out[0, 5, 3001] = out[0, 5, 3001].bfloat16().float()
    pooled = float((out - expected).norm() / expected.norm())
    assert pooled < TOLERANCE["float32"] / 4  # all rows together would pass
    with pytest.raises(InvalidResult, match=r"in 1 of 32000 rows"):
        compare(out, expected, "float32")


def test_the_error_returned_is_that_of_all_rows() -> None:
    expected = _draw()
    out = expected + 1e-6 * _draw(1)
    assert compare(out, expected, "float32") == pytest.approx(
        float((out - expected).norm() / expected.norm()), rel=1e-3
    )


def test_rows_of_zeros_must_be_zero() -> None:
    expected = _draw()
    expected[:, :, 5] = 0
    assert compare(expected.clone(), expected, "float32") == 0
    out = expected.clone()
    out[0, 0, 5, 3] = 1e-12
    with pytest.raises(InvalidResult, match="relative error inf"):
        compare(out, expected, "float32")


def test_rows_of_terms_that_cancel_are_relative_to_their_head() -> None:
    expected = _draw()
    expected[:, 1] *= 100  # another scale must not hide errors of the first head
    expected[:, 0, 5] = 0
    out = expected.clone()
    out[0, 0, 5] = 1e-6
    assert compare(out, expected, "float32", terms=1.0) < 1e-6
    out[0, 0, 6] *= 1.001
    with pytest.raises(InvalidResult, match=r"^its gradient differs from the reference in 1 of 576 rows"):
        compare(out, expected, "float32", "its gradient", terms=1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_but_rounding_errors_may_be_left_of_terms_that_cancel(dtype: str) -> None:
    expected, terms = torch.zeros(1, 2, 3, 16, dtype=getattr(torch, dtype)), 64.0
    eps = torch.finfo(expected.dtype).eps
    out = expected + eps * terms / 8  # a norm of half a rounding error
    assert 0 < compare(out, expected, dtype, terms=terms) < 2 * eps * terms
    with pytest.raises(InvalidResult, match="relative error inf"):
        compare(expected + eps * terms, expected, dtype, terms=terms)
    with pytest.raises(InvalidResult, match="relative error inf"):
        compare(out, expected, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_errors_of_terms_must_not_add_up(dtype: str) -> None:
    expected, terms = _draw(dtype=dtype), 64.0
    out = expected + (0.4 * torch.finfo(expected.dtype).eps * terms * _draw(1)).to(expected)
    out = torch.where(_draw(2)[..., :1] > 0, out, out + 0.3 * expected)
    with pytest.raises(InvalidResult, match="differs from the reference"):
        compare(out, expected, dtype, terms=terms)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_reported(value: float) -> None:
    expected, wrong = _draw(), _draw()
    wrong[0, 0, 0, 0] = value
    with pytest.raises(InvalidResult, match=r"^the output has values that are not finite"):
        compare(wrong, expected, "float32")
    with pytest.raises(InvalidResult, match=r"^the output of the reference implementation has values"):
        compare(expected, wrong, "float32")


def test_other_shapes_and_dtypes_are_reported() -> None:
    expected = _draw()
    for wrong in (expected[:, :, :-1], expected.double()):
        with pytest.raises(InvalidResult, match=r"the reference's torch\.float32"):
            compare(wrong, expected, "float32")


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 0, 4), (2, 3, 4, 0)])
def test_gradients_of_any_shape_are_compared(shape: tuple[int, ...]) -> None:
    expected = _draw(shape=shape)
    assert compare(expected.clone(), expected, "float32", terms=1e-3) == 0
    if expected.numel():
        with pytest.raises(InvalidResult, match="relative error"):
            compare(expected * 1.01, expected, "float32", terms=1e-3)


def test_one_rounding_error_of_products_is_left_out_of_every_row() -> None:
    expected, eps = _draw(), torch.finfo(torch.float32).eps
    expected[0, 0, 0] *= 1e-4  # one key, whose weight is nearly zero
    out = expected.clone()
    out[0, 0, 0, 0] += 0.9 * 60 * eps
    with pytest.raises(InvalidResult, match="in 1 of 576 rows"):
        compare(out, expected, "float32")
    assert compare(out, expected, "float32", products=60.0) < 1e-6
    out[0, 0, 0, 0] += 60 * eps
    with pytest.raises(InvalidResult, match="in 1 of 576 rows"):
        compare(out, expected, "float32", products=60.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_half_precision_are_summed_in_float32(dtype: str) -> None:
    expected = _draw(dtype=dtype)
    out = expected.clone()
    out[0, 0, 0] *= 1 + 3 * TOLERANCE[dtype]
    with pytest.raises(InvalidResult, match="in 1 of 576 rows"):
        compare(out, expected, dtype, products=60.0)
