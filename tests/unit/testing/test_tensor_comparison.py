"""Tolerances are relative to each row: neither a tiny row nor a tiny output may be wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from efficient_attn.testing.tensor_comparison import TOLERANCES, assert_all_close, assert_close, find_fitting_scale

DTYPES = list(TOLERANCES)


def _draw(shape: tuple[int, ...] = (2, 3, 50, 16), seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_output_of_any_size_is_compared_with_its_own_size(dtype: torch.dtype, size: float) -> None:
    want = _draw() * size
    assert_close(want, want, "equal", tolerance=TOLERANCES[dtype])
    with pytest.raises(AssertionError, match=r"off by .* of the row's size"):
        assert_close(want * (1 + 3 * TOLERANCES[dtype]), want, "all", tolerance=TOLERANCES[dtype])


@pytest.mark.parametrize(("share", "error"), [(1.0, 4e-5), (0.05, 2e-4)])
def test_one_small_row_is_compared_with_its_own_size(share: float, error: float) -> None:
    want = _draw().float()
    want[1, 2, 17] *= share
    got = want.clone()
    got[1, 2, 17] *= 1 + error
    with pytest.raises(AssertionError, match=r"at \[1, 2, 17, "):
        assert_close(got, want, "a row", tolerance=2e-5)


def test_rows_that_nearly_cancel_are_compared_with_what_was_summed() -> None:
    want = torch.full((1, 1, 1, 4), 1e-9)
    got = want + 1e-7
    with pytest.raises(AssertionError, match="off by"):
        assert_close(got, want, "alone", tolerance=2e-5)
    assert_close(got, want, "a sum of ones", tolerance=2e-5, summed=1.0)


def test_gradients_that_cancel_are_compared_with_their_terms_but_not_those_by_v() -> None:
    zeros = torch.zeros(1, 1, 4, 8)
    rounded = zeros + 1e-8
    assert_all_close({"gradient by q": rounded}, {"gradient by q": zeros}, "one key", terms=1.0)
    for name in ("gradient by v", "output"):
        with pytest.raises(AssertionError, match=name):
            assert_all_close({name: rounded}, {name: zeros}, "one key", terms=1.0)


def test_zeros_must_be_zeros_and_empty_tensors_are_equal() -> None:
    zeros = torch.zeros(2, 3)
    assert_close(zeros, zeros, "zeros")
    with pytest.raises(AssertionError, match="off by"):
        assert_close(zeros + 1e-30, zeros, "nearly", summed=0.0)
    assert_close(zeros + 1e-30, zeros, "rounding errors of unknown sums")
    with pytest.raises(AssertionError, match="off by"):
        assert_close(zeros + 1e-3, zeros, "an error")
    assert_close(torch.zeros(0, 3), torch.zeros(0, 3), "nothing")
    with pytest.raises(AssertionError, match="not finite"):
        assert_close(zeros / 0, zeros, "NaN")


@pytest.mark.parametrize(("largest", "scale"), [(1.0, 1.0), (16_000.0, 1.0), (17_000.0, 0.5), (4e6, 2.0**-8)])
def test_fitting_scales_are_powers_of_two_with_which_tensors_fit(largest: float, scale: float) -> None:
    tensors = [torch.tensor([0.5]), torch.tensor([1.0, -largest])]
    assert find_fitting_scale(tensors, torch.float16) == scale
    assert find_fitting_scale(tensors, torch.bfloat16) == 1
    assert largest * scale <= torch.finfo(torch.float16).max / 4
