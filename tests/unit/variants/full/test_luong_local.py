"""Luong's local attention: its formula, also with padding, and its parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea

HEADS, GROUPS, WIDTH = 4, 2, 6
DIMS = ea.Dims(heads=HEADS, kv_heads=GROUPS, head_dim=WIDTH)


def reference(attn: Any, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """The paper's equations, in a loop over queries. seen: the keys allowed for each query, ``[B, N, M]``."""
    out = torch.zeros_like(q)
    m = k.shape[2]
    for b in range(len(q)):
        for h in range(HEADS):
            group = h // (HEADS // GROUPS)
            for i in range(q.shape[2]):
                centre = torch.tensor(float(m - q.shape[2] + i), dtype=q.dtype)
                if attn.u is not None:
                    share = torch.sigmoid(attn.u[group] @ (attn.form[group] @ q[b, h, i]).tanh())
                    centre = seen[b, i].sum() * share
                near = [j for j in range(m) if seen[b, i, j] and abs(j - centre) <= attn.window]
                if near:
                    scores = torch.stack([q[b, h, i] @ k[b, group, j] for j in near]) / WIDTH**0.5
                    bell = torch.stack([(-((j - centre) ** 2) / (2 * (attn.window / 2) ** 2)).exp() for j in near])
                    out[b, h, i] = (scores.softmax(0) * bell) @ v[b, group, near]
    return out


@pytest.mark.parametrize("position", ["predicted", "own"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("backend", ["windows", "dense"])
def test_outputs_equal_the_formula(position: str, causal: bool, padded: bool, backend: str) -> None:
    attn = ea.create("luong_local", window=2, position=position, dims=DIMS, seed=1, backend=backend).double()
    q, k, v = (torch.randn(2, heads, 9, WIDTH, dtype=torch.float64) for heads in (HEADS, GROUPS, GROUPS))
    seen = torch.ones(2, 9, 9).tril().bool() if causal else torch.ones(2, 9, 9).bool()
    lengths = torch.tensor([9, 5])
    if padded:
        seen = seen & (torch.arange(9) < lengths[:, None])[:, None]
    got = attn(q, k, v, ea.Mask(causal=causal, key_lengths=lengths if padded else None))
    torch.testing.assert_close(got, reference(attn, q, k, v, seen), rtol=0, atol=1e-13)


def test_parameters_of_predicted_positions_have_gradients() -> None:
    attn: Any = ea.create("luong_local", window=3, dims=DIMS)
    q, k, v = (torch.randn(2, heads, 30, WIDTH) for heads in (HEADS, GROUPS, GROUPS))
    attn(q, k, v).square().sum().backward()
    assert attn.form.grad.abs().sum() > 0
    assert attn.u.grad.abs().sum() > 0


def test_own_positions_have_no_parameters_and_need_no_dims() -> None:
    assert not list(ea.create("luong_local:position=own").parameters())
    with pytest.raises(ea.UsageError, match="kv_heads or heads"):
        ea.create("luong_local")
    with pytest.raises(ea.UsageError, match="window must be at least 1"):
        ea.create("luong_local:position=own:window=0")
