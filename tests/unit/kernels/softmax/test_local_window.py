"""Softmax over windows around centres: any block size equals the reference, with gradients of the centres, too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from efficient_attn.kernels.softmax import local_window
from efficient_attn.kernels.softmax.local_window import LocalInputs, LocalOptions

B, H, G, D, E = 2, 4, 2, 3, 5


def plain(
    q: Tensor, k: Tensor, v: Tensor, centres: Tensor, valid: Tensor | None, causal: bool, start: int, window: int
) -> Tensor:
    keys, values = (x.repeat_interleave(H // G, 1) for x in (k, v))
    n, m = q.shape[2], k.shape[2]
    away = torch.arange(m) - centres[..., None]
    seen = away.abs() <= window
    if causal:
        seen = seen & (torch.arange(m) <= torch.arange(start, start + n)[:, None])
    if valid is not None:
        seen = seen & valid[:, None, None]
    weights = (q @ keys.mT / D**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    weights = torch.where(seen.any(-1, keepdim=True), weights.nan_to_num(), 0)
    return weights * (-away.square() / (2 * (window / 2) ** 2)).exp() @ values


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 11),
    m=st.integers(1, 11),
    window=st.integers(1, 12),
    block=st.integers(1, 2000),
    causal=st.booleans(),
    hidden=st.booleans(),
    start=st.integers(-3, 9),
    own_positions=st.booleans(),
)
def test_any_block_size_equals_reference(
    n: int, m: int, window: int, block: int, causal: bool, hidden: bool, start: int, own_positions: bool
) -> None:
    shapes = (B, H, n, D), (B, G, m, D), (B, G, m, E)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    centres = torch.rand(B, H, n, dtype=torch.float64) * (m + 6) - 3
    centres = (
        (torch.arange(start, start + n).double().expand(B, H, n) if own_positions else centres).clone().requires_grad_()
    )
    valid = torch.rand(B, m) < 0.6 if hidden else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_window, "BLOCK_ELEMENTS", block)
        patch.setattr(local_window, "STRETCH_ROWS", 1 + block % 5)
        inputs = LocalInputs(q, k, v, centres, valid)
        got = local_window.attend(inputs, LocalOptions(causal, start, window, own_positions))
        want = plain(q, k, v, centres, valid, causal, start, window)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-13)
        grads = [torch.autograd.grad(x.cos().sum(), (q, k, v, centres)) for x in (got, want)]
        for actual, expected in zip(*grads, strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
