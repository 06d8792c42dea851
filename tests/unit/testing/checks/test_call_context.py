"""Conformance tests of half precision where outputs or gradients are larger than float16's largest number."""

from __future__ import annotations

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.contract.shapes import Dims
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks.call_context import autocast
from efficient_attn.testing.checks.reference import dtypes

NEARLY_ZERO_SUMS = "performer:n_features=16:kind=trigonometric"  # a row's sum of weights is 1.7e-4 in the drawn call


class FivePercentTooLarge(torch.autograd.Function):
    """The identity, whose gradient is too large by 5%."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        return grads[0] * 1.05


def make_wrong_gradient(dims: Dims, seed: int, backend: str | None) -> ea.Attention:
    attn = ea.create(NEARLY_ZERO_SUMS, dims=dims, seed=seed, backend=backend)
    compute = attn.compute

    def changed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        is_wrong = q.dtype == torch.float16 and mask.causal and q.requires_grad
        return compute(FivePercentTooLarge.apply(q) if is_wrong else q, k, v, mask, **inputs)

    attn.compute = changed
    return attn


def test_gradients_beyond_float16_are_compared_at_another_scale() -> None:
    outcome = run_check(autocast, Subject(NEARLY_ZERO_SUMS))
    assert outcome.status == "passed", outcome.reason
    outcome = run_check(autocast, Subject(make_wrong_gradient))
    assert outcome.status == "failed"
    assert "gradient by q, under autocast, causal: off by 0.05" in outcome.reason


def test_outputs_beyond_float16_are_compared_at_another_scale() -> None:
    outcome = run_check(dtypes, Subject("performer:n_features=2:kind=trigonometric"))
    assert outcome.status == "passed", outcome.reason
