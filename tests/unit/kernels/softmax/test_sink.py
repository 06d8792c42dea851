"""Attention with a sink, from torch's kernel and its log-sum-exp, equals a softmax with one more column."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels.softmax import sink

B, H, D = 2, 4, 8
Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(n: int, m: int, kv_heads: int, value_width: int = D, dtype: torch.dtype = torch.float64) -> Inputs:
    """q, k, v and a sink per row, which require gradients."""
    shapes = (B, H, n, D), (B, kv_heads, m, D), (B, kv_heads, m, value_width), (B, H, n)
    q, k, v, logits = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes)
    return q, k, v, logits


def plain(inputs: Inputs, mask: ea.Mask) -> Tensor:
    q, k, v, logits = inputs
    keys, values = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    scores = (q @ keys.mT / math.sqrt(D)).masked_fill(~mask.dense(q.shape[2], k.shape[2]), -torch.inf)
    return torch.cat((scores, logits[..., None]), -1).softmax(-1)[..., :-1] @ values


MASKS = {
    "all": {},
    "causal": {"causal": True},
    "padding": {"key_lengths": torch.tensor([0, 5])},
    "padded and causal": {"causal": True, "key_lengths": torch.tensor([9, 3])},
    "queries before the keys": {"causal": True, "query_start": -3},
    "queries within the keys": {"causal": True, "query_start": 4},
    "queries after the keys": {"causal": True, "query_start": 900},
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("sizes", [(9, 9), (6, 12), (12, 6), (300, 290)])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("value_width", [D, 5, 11])
def test_sink_equals_softmax_with_one_more_column(
    mask: dict, sizes: tuple[int, int], kv_heads: int, value_width: int
) -> None:
    inputs, attention_mask = draw(*sizes, kv_heads, value_width), ea.Mask(**mask)
    got, want = sink.attend(*inputs, attention_mask), plain(inputs, attention_mask)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(x.cos().sum(), inputs) for x in (got, want)]
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("supported", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_groups_are_correct_with_and_without_kernel_support(
    supported: bool, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if supported and not sink.fused.KERNEL_SUPPORTS_GROUPS:
        pytest.skip("this torch does not support groups")
    monkeypatch.setattr(sink.fused, "supports_groups", lambda q, k: supported)
    inputs, mask = draw(20, 20, 2), ea.Mask(causal=causal)
    got, want = sink.attend(*inputs, mask), plain(inputs, mask)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(x.cos().sum(), inputs) for x in (got, want)]
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("logit", [-1e4, -30.0, 0.0, 30.0, 1e4])
def test_sinks_of_any_size_are_accurate_in_float32(logit: float, kv_heads: int) -> None:
    q, k, v, _ = draw(20, 20, kv_heads, dtype=torch.float32)
    logits = torch.full((B, H, 20), logit, requires_grad=True)
    inputs = q, k, v, logits
    wide = q.detach().double(), k.detach().double(), v.detach().double(), logits.detach().double()
    got, want = (sink.attend(*x, ea.Mask(causal=True)) for x in (inputs, wide))
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6)
    torch.testing.assert_close(want, plain(wide, ea.Mask(causal=True)), rtol=0, atol=1e-12)
    assert all(x.isfinite().all() for x in torch.autograd.grad(got.sum(), inputs))


@pytest.mark.parametrize("mask", [MASKS["causal"], MASKS["queries within the keys"]])
def test_memory_grows_linearly_with_length(mask: dict) -> None:
    def measure(n: int) -> int:
        q, k, v, grad = (torch.randn(1, 2, n, 16) for _ in range(4))
        leaves = q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), torch.zeros(1, 2, n, requires_grad=True)
        attention_mask = ea.Mask(**mask)
        peak = measure_footprint(
            lambda: sink.attend(*leaves, attention_mask),
            lambda out: torch.autograd.grad(out, leaves, grad),
            device="cpu",
        ).peak
        assert peak is not None
        return peak

    one, two, four = (measure(n) for n in (1024, 2048, 4096))
    assert four - two < 2.5 * (two - one)
    assert four < 4096 * 4096


def test_a_second_derivative_is_refused() -> None:
    inputs = draw(3, 3, 4)
    out = sink.attend(*inputs, ea.Mask())
    (first,) = torch.autograd.grad(out.square().sum(), inputs[3], create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="attention with a sink has no second derivative"):
        first.sum().backward()
