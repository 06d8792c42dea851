"""Kernels have first derivatives, eagerly and under torch.func; second derivatives raise; checkpointing works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import efficient_attn as ea
from efficient_attn.kernels.derivatives import KernelFunction, differentiate_once


class Cube(KernelFunction):
    """x^3, with a second output that is None."""

    @staticmethod
    def forward(x: Tensor, power: int) -> tuple[Tensor, None]:
        return x**power, None

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return differentiate_once("the cube", lambda g, x: 3 * g * x**2, grads[0], *ctx.saved_tensors), None


def cube(x: Tensor) -> Tensor:
    outputs: Any = Cube.apply(x, 3)
    return outputs[0]


def test_nothing_is_saved_if_no_gradient_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cube, "setup_context", lambda *_: pytest.fail("a backward pass was prepared"))
    assert cube(torch.tensor([2.0])).tolist() == [8]
    with torch.no_grad():
        assert cube(torch.tensor([2.0], requires_grad=True)).tolist() == [8]


def test_create_graph_works_but_second_derivative_raises() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (first,) = torch.autograd.grad(cube(x).sum(), x, create_graph=True)
    assert first.tolist() == [3, 12]
    with pytest.raises(ea.UnsupportedError, match="the cube has no second derivative; backend=dense has one"):
        first.sum().backward()


def test_other_terms_of_a_loss_have_second_derivatives() -> None:
    x, w = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor(3.0, requires_grad=True)
    grad_w, grad_x = torch.autograd.grad(w**2 * cube(x).detach().sum() + cube(x).sum(), (w, x), create_graph=True)
    assert torch.autograd.grad(grad_w, w)[0] == 18
    assert grad_x.tolist() == [3, 12]


def test_torch_func_supports_first_derivatives_only() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.func.vmap(cube, in_dims=1, out_dims=1)(x).tolist() == (x**3).tolist()
    assert torch.func.vmap(torch.func.grad(lambda y: cube(y).sum()))(x).tolist() == (3 * x**2).tolist()
    with pytest.raises(ea.UnsupportedError, match="the cube has no second derivative"):
        torch.func.grad(lambda y: torch.func.grad(lambda z: cube(z).sum())(y).sum())(x[0])


@pytest.mark.parametrize("spec", ["linear", "sliding_window:window=5"])
def test_checkpointing_gives_the_same_gradients(spec: str) -> None:
    attn = ea.create(spec)
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 40, 8))
    for reentrant in (False, True):
        out = checkpoint(attn, q, k, v, ea.Mask(causal=True), use_reentrant=reentrant)
        assert isinstance(out, Tensor)
        got = torch.autograd.grad(out.square().sum(), (q, k, v)) if not reentrant else None
        want = torch.autograd.grad(attn(q, k, v, ea.Mask(causal=True)).square().sum(), (q, k, v))
        if got is None:
            out.square().sum().backward()
            got = (q.grad, k.grad, v.grad)
        for actual, expected in zip(got, want, strict=True):
            torch.testing.assert_close(actual, expected)
