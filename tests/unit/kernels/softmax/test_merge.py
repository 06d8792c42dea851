"""Merged partial softmaxes equal the whole softmax, with gradients, and the fused and unfused engines agree."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from efficient_attn.kernels.softmax.merge import (
    FusedInputs,
    FusedOptions,
    attend,
    attend_backward,
    attend_unfused,
    attend_unfused_backward,
    join,
    join_parts,
)
from efficient_attn.kernels.softmax.softmax_kernel import SavedSoftmax

SCALE = 0.3
OPTIONS = FusedOptions(causal=False, scale=SCALE)


def tensors(rows: int = 6, keys: int = 11) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    q, g = (torch.randn(2, 3, rows, 8, dtype=torch.float64) for _ in range(2))
    k, v = (torch.randn(2, 3, keys, 8, dtype=torch.float64) for _ in range(2))
    mask = torch.zeros(2, 3, rows, keys, dtype=torch.float64).masked_fill(torch.rand(2, 3, rows, keys) < 0.3, -math.inf)
    return q, k, v, g, mask


def test_unfused_gradients_of_shared_keys() -> None:
    """Of one head for all of q's, summed over these."""
    q, k, v, g, _ = tensors()
    k, v = (x[:, :1].requires_grad_() for x in (k, v))
    weights = (q @ k.mT * SCALE).softmax(-1)
    expected = torch.autograd.grad(weights @ v, (k, v), g)
    inputs = FusedInputs(q, k.detach(), v.detach(), None)
    _, *grads = attend_unfused_backward(g, SavedSoftmax(inputs, *attend_unfused(inputs, OPTIONS)), OPTIONS)
    for grad, reference in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, reference)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_fused_and_unfused_engines_agree(masked: bool, causal: bool) -> None:
    q, k, v, g, mask = tensors()
    mask = mask.index_fill(-1, torch.tensor(0), 0) if masked else None  # so that every row sees a key
    inputs, options = FusedInputs(q, k, v, mask), FusedOptions(causal, SCALE)
    (out, lse), (unfused, sums) = attend(inputs, options), attend_unfused(inputs, options)
    torch.testing.assert_close(out, unfused)
    torch.testing.assert_close(lse, sums)
    saved = SavedSoftmax(inputs, out, lse)
    fused_grads, unfused_grads = attend_backward(g, saved, options), attend_unfused_backward(g, saved, options)
    for actual, expected in zip(fused_grads, unfused_grads, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("engine", [(attend, attend_backward), (attend_unfused, attend_unfused_backward)])
def test_joined_parts_equal_the_whole_softmax_with_gradients(engine) -> None:
    forward, backward = engine
    q, k, v, g, mask = tensors()
    for x in (q, k, v):
        x.requires_grad_()
    scores = q @ k.mT * SCALE + mask
    whole = scores.softmax(-1) @ v
    want = torch.autograd.grad((whole * g).sum(), (q, k, v))
    q, k, v = (x.detach() for x in (q, k, v))
    out, lse = torch.zeros_like(q), torch.full(q.shape[:-1], -math.inf, dtype=q.dtype)
    cuts = (slice(0, 4), slice(4, 5), slice(5, 11))
    for cut in cuts:
        blind = (mask[..., cut] == -math.inf).all(-1)
        part, sums = forward(FusedInputs(q, k[:, :, cut], v[:, :, cut], mask[..., cut]), OPTIONS)
        join(out, lse, part, sums.masked_fill(blind, -math.inf))
    torch.testing.assert_close(out, whole.detach())
    torch.testing.assert_close(lse, scores.detach().logsumexp(-1))
    pieces = [FusedInputs(q, k[:, :, c], v[:, :, c], mask[..., c]) for c in cuts]
    parts = [backward(g, SavedSoftmax(piece, out, lse), OPTIONS) for piece in pieces]
    grads = sum(p[0] for p in parts), *(torch.cat([p[at] for p in parts], 2) for at in (1, 2))
    for actual, expected in zip(grads, want, strict=True):
        torch.testing.assert_close(actual, expected)


def test_join_parts_equals_the_whole_softmax() -> None:
    q, k, v, _, mask = tensors(keys=12)
    mask[..., 0, :4] = -math.inf  # a part in which a row sees no key
    scores, (batch, heads, rows, width) = q @ k.mT * SCALE + mask, q.shape
    keys, values = (x.reshape(-1, 3, 4, width) for x in (k, v))
    masks = mask.unflatten(-1, (3, 4)).transpose(2, 3).reshape(-1, 3, rows, 4)
    outs, sums = attend_unfused(FusedInputs(q.reshape(-1, 1, rows, width), keys, values, masks), OPTIONS)
    whole = join_parts(outs.nan_to_num(), sums).view(batch, heads, rows, width)
    torch.testing.assert_close(whole, scores.softmax(-1) @ v)


def test_gradient_of_a_part_needs_the_merged_log_sum_exp() -> None:
    """With its own log-sum-exp, a part's gradient differs from that of the whole."""
    q, k, v, g, _ = tensors()
    inputs = FusedInputs(q, k[:, :, :4], v[:, :, :4], None)
    whole, part = attend(FusedInputs(q, k, v, None), OPTIONS), attend(inputs, OPTIONS)
    right, wrong = (attend_backward(g, SavedSoftmax(inputs, *results), OPTIONS) for results in (whole, part))
    assert (right[0] - wrong[0]).abs().max() > 0.01


def test_joining_empty_parts_changes_nothing() -> None:
    out, lse = torch.zeros(2, 3), torch.full((2,), -math.inf)
    join(out, lse, torch.ones(2, 3), torch.tensor([-math.inf, 0.0]))
    assert out.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert lse.tolist() == [-math.inf, 0]
    join(out, lse, torch.full((2, 3), 5.0), torch.full((2,), -math.inf))
    assert out.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_half_precision_parts_are_joined_in_float32() -> None:
    out, lse = torch.zeros(1, 1), torch.full((1,), -math.inf)
    for _ in range(100):
        join(out, lse, torch.full((1, 1), 0.1, dtype=torch.bfloat16), torch.zeros(1))
    assert out.dtype == torch.float32
    torch.testing.assert_close(lse, torch.tensor([math.log(100)]))
