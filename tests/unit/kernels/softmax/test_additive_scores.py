"""Additive attention in blocks: any block size equals the reference with gradients, for scores of any size."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.softmax import additive_scores
from efficient_attn.kernels.softmax.additive_scores import AdditiveInputs, AdditiveOptions
from efficient_attn.testing.checks.growth_claims import WorkCounter

B, H, G, A, E = 2, 4, 2, 5, 3


@pytest.fixture(autouse=True)
def _always_use_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use blocks for small inputs, too."""
    monkeypatch.setattr(additive_scores, "MAX_UNBLOCKED_SUMS", 0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("n", "m", "causal", "start"), [(1, 7, False, 0), (5, 7, True, 2), (7, 7, True, 0), (3, 7, True, -2)]
)
def test_unblocked_and_blocked_results_agree(
    padded: bool, n: int, m: int, causal: bool, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, valid = draw(n, m), torch.arange(m) < torch.tensor([[m], [m - 3]]) if padded else None
    results = []
    for limit in (0, additive_scores.BLOCK_ELEMENTS):
        monkeypatch.setattr(additive_scores, "MAX_UNBLOCKED_SUMS", limit)
        out = additive_scores.attend(AdditiveInputs(*tensors, valid), AdditiveOptions(causal, start))
        results.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
    for blocks, at_once in zip(*results, strict=True):
        torch.testing.assert_close(at_once, blocks, rtol=0, atol=1e-12)


def test_calls_with_possibly_empty_rows_are_detected() -> None:
    no_keys, second_only = torch.zeros(1, 3, dtype=torch.bool), torch.tensor([[False, True]])
    calls = [
        (no_keys, False, 0, False),
        (None, True, -1, False),
        (second_only, True, 0, False),
        (second_only, False, 0, True),
    ]
    for valid, causal, start, expected in calls:
        inputs = AdditiveInputs(*draw(1, 1), valid)
        assert additive_scores._every_query_sees_keys(inputs, AdditiveOptions(causal, start)) == expected


def draw(n: int, m: int, size: float = 1.0) -> list[Tensor]:
    """x, y, v and u, which require gradients."""
    shapes = (B, H, n, A), (B, G, m, A), (B, G, m, E), (G, A)
    sizes = size, size, 1.0, 1.0
    drawn = [torch.randn(shape, dtype=torch.float64) * s for shape, s in zip(shapes, sizes, strict=True)]
    return [x.requires_grad_() for x in drawn]


def plain(x: Tensor, y: Tensor, v: Tensor, u: Tensor, valid: Tensor | None, causal: bool, start: int) -> Tensor:
    keys, values, w = (
        part.repeat_interleave(H // G, -len(rest) - 1) for part, rest in ((y, "md"), (v, "me"), (u, "a"))
    )
    scores = ((x[:, :, :, None] + keys[:, :, None]).tanh() * w[:, None, None]).sum(-1)
    n, m = scores.shape[2:]
    seen = torch.ones(B, 1, n, m, dtype=torch.bool)
    if causal:
        seen &= torch.arange(m) <= torch.arange(start, start + n)[:, None]
    if valid is not None:
        seen = seen & valid[:, None, None]
    top = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.where(seen.any(-1, keepdim=True), top.nan_to_num(), 0) @ values


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 11),
    m=st.integers(1, 11),
    block=st.integers(1, 400),
    keys=st.integers(1, 12),
    causal=st.booleans(),
    hidden=st.booleans(),
    start=st.integers(-3, 9),
    size=st.sampled_from([1.0, 1000.0]),
)
def test_any_block_size_equals_reference(
    n: int, m: int, block: int, keys: int, causal: bool, hidden: bool, start: int, size: float
) -> None:
    tensors = draw(n, m, size)
    valid = torch.rand(B, m) < 0.6 if hidden else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(additive_scores, "BLOCK_ELEMENTS", block)
        patch.setattr(additive_scores, "BLOCK_KEYS", keys)
        got = additive_scores.attend(AdditiveInputs(*tensors, valid), AdditiveOptions(causal, start))
        want = plain(*tensors, valid, causal, start)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
        grads = [torch.autograd.grad(x.cos().sum(), tensors) for x in (got, want)]
        for actual, expected in zip(*grads, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("size", [1.0, 10.0, 100.0])
def test_scores_of_any_size_are_accurate_in_float32(size: float) -> None:
    """At size 100 exp(2 * sum) is e^200 and more: it overflows float32, and products of such terms overflow float64."""
    x, y, v, u = (part.detach() for part in draw(40, 50, size))
    want = plain(x, y, v, u, None, False, 0)
    inputs = AdditiveInputs(x.float(), y.float(), v.float(), u.float(), None)
    got = additive_scores.attend(inputs, AdditiveOptions(False, 0))
    torch.testing.assert_close(got.double(), want, rtol=0, atol=3e-5 if size > 10 else 2e-6)  # x itself is rounded


def test_a_second_derivative_is_refused() -> None:
    tensors = draw(3, 3)
    (first,) = torch.autograd.grad(
        additive_scores.attend(AdditiveInputs(*tensors, None), AdditiveOptions(False, 0)).square().sum(),
        tensors[0],
        create_graph=True,
    )
    with pytest.raises(ea.UnsupportedError, match="additive attention has no second derivative"):
        first.sum().backward()


def test_a_decode_step_computes_few_numbers_in_few_operations() -> None:
    """One query takes all its keys at once, and as many numbers of each as the sums have."""
    x, y, v, u = (part.detach() for part in draw(1, 4096))
    call = partial(additive_scores.attend, AdditiveInputs(x, y, v, u, None), AdditiveOptions(True, 4095))
    with WorkCounter(computed_only=True) as work:
        call()
    with torch.profiler.profile() as profile:
        call()
    assert work.work < 6 * B * H * 4096 * A
    assert sum(event.name == "aten::sigmoid_" for event in profile.events() or ()) == B * G
