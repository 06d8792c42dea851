"""Kernels made of a forward and a backward pass: torch's gradients, torch.func, and the op's signature."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.softmax.softmax_kernel import SavedSoftmax, SoftmaxKernel, cut_range


class Inputs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None


class Options(NamedTuple):
    scale: float
    causal: bool


def score(inputs: Inputs, options: Options) -> Tensor:
    scores = inputs.q @ inputs.k.mT * options.scale
    scores = scores if inputs.bias is None else scores + inputs.bias
    return scores + torch.full_like(scores, -torch.inf).triu(1) if options.causal else scores


def forward(inputs: Inputs, options: Options) -> tuple[Tensor, Tensor]:
    scores = score(inputs, options)
    return scores.softmax(-1) @ inputs.v, scores.logsumexp(-1)


def gradients(grad: Tensor, saved: SavedSoftmax[Inputs], options: Options) -> tuple[Tensor, Tensor, Tensor]:
    (q, k, v, _), out, lse = saved
    weights = (score(saved.inputs, options) - lse[..., None]).exp()
    delta = (grad * out).sum(-1, keepdim=True)
    grad_score = weights * (grad @ v.mT - delta) * options.scale
    return grad_score @ k, grad_score.mT @ q, weights.mT @ grad


KERNEL = SoftmaxKernel("the toy", Inputs, Options, forward, gradients, op="toy_of_test_softmax_kernel")
OPTIONS = [Options(0.3, False), Options(1.5, True)]


def draw(bias: bool = False, batch: tuple[int, ...] = (2, 3)) -> Inputs:
    shapes = (*batch, 7, 4), (*batch, 7, 4), (*batch, 7, 5)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return Inputs(q, k, v, torch.randn(7, 7, dtype=torch.float64) if bias else None)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_equal_autograds(options: Options, bias: bool) -> None:
    inputs = draw(bias)
    for got in (KERNEL(inputs, options), KERNEL.op(*inputs, options.scale, options.causal)[0]):
        want, _ = forward(inputs, options)
        torch.testing.assert_close(got, want)
        pairs = (torch.autograd.grad(x.cos().sum(), inputs[:3]) for x in (got, want))
        for actual, expected in zip(*pairs, strict=True):
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("options", OPTIONS)
def test_vmap_of_grad_equals_reference(options: Options) -> None:
    q, k, v, _ = (None if x is None else x.detach() for x in draw(batch=(3, 2)))

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return KERNEL(Inputs(q, k, v, None), options).cos().sum()

    def want(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return forward(Inputs(q, k, v, None), options)[0].cos().sum()

    for dims in ((0, 0, 0), (0, None, 1)):
        rows = q, k if dims[1] == 0 else k[0], v if dims[2] == 0 else v.transpose(0, 1)
        results = (torch.func.vmap(torch.func.grad(f, argnums=(0, 1, 2)), in_dims=dims)(*rows) for f in (loss, want))
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected)


def test_a_second_derivative_is_refused_even_if_the_loss_is_linear() -> None:
    inputs = draw()
    (grad,) = torch.autograd.grad(KERNEL(inputs, OPTIONS[0]).sum(), inputs.q, create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="the toy has no second derivative"):
        grad.sum().backward()


def test_op_has_fields_as_arguments_and_supports_meta_tensors() -> None:
    schema = torch.ops.efficient_attn.toy_of_test_softmax_kernel.default._schema
    assert [argument.name for argument in schema.arguments] == ["q", "k", "v", "bias", "scale", "causal"]
    inputs = draw(bias=True)
    torch.library.opcheck(torch.ops.efficient_attn.toy_of_test_softmax_kernel, (*inputs, 0.5, True))
    meta = KERNEL(Inputs(*(x.detach().to("meta") for x in inputs if x is not None)), OPTIONS[0])
    assert meta.is_meta
    assert meta.shape == (2, 3, 7, 5)


def test_graph_is_recorded_only_if_gradients_are_enabled() -> None:
    inputs = draw()
    with torch.no_grad():
        assert KERNEL(inputs, OPTIONS[0]).grad_fn is None
    assert KERNEL(inputs, OPTIONS[0]).requires_grad


@pytest.mark.parametrize(("size", "step"), [(0, 3), (1, 3), (6, 3), (7, 3), (2, 100)])
def test_cut_range_covers_each_index_once(size: int, step: int) -> None:
    parts = list(cut_range(size, step))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(size))
    assert all(0 < part.stop - part.start <= step for part in parts)
