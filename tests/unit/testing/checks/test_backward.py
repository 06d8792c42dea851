"""An author's own backward pass: right and refused second derivatives pass, silently missing ones fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from toy_mechanisms import PLAIN, Toy

import efficient_attn as ea
from efficient_attn.testing import Subject, run_check
from efficient_attn.testing.checks import backward, environment


def _differentiate(grad: Tensor, rows: Any, *inputs: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        return None, *torch.autograd.grad(rows(*leaves), leaves, grad)  # pyright: ignore[reportReturnType]


class Refusing(ea.KernelFunction):
    """As docs/how-to/add-a-module.md says."""

    @staticmethod
    def forward(rows: Any, *inputs: Tensor) -> Tensor:
        return rows(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rows = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ea.differentiate_once("toy", _differentiate, grads[0], ctx.rows, *ctx.saved_tensors)


class Silent(Refusing):
    """`once_differentiable` raises no error if the incoming gradient is constant."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        return _differentiate(grads[0], ctx.rows, *ctx.saved_tensors)


def _make(function: type[ea.KernelFunction]) -> type[Toy]:
    class WithFunction(Toy):
        claims = replace(PLAIN, padding=False)  # whose mask would have to be saved too

        def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
            def rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return self._rows(q, k, v, mask, 0, q.shape[2])

            return function.apply(rows, q, k, v)

    return WithFunction


@pytest.mark.parametrize(
    "check", [*(c for c in vars(backward).values() if hasattr(c, "meaning")), environment.torch_func]
)
def test_a_backward_pass_as_documented_passes(check: Any) -> None:
    outcome = run_check(check, Subject(lambda dims, seed, backend: _make(Refusing)()))
    assert outcome.status != "failed", outcome.reason


def test_missing_second_derivatives_are_detected() -> None:
    outcome = run_check(backward.second_derivatives, Subject(lambda dims, seed, backend: _make(Silent)()))
    assert outcome.status == "failed"
    assert "second derivative" in outcome.reason
