"""Differential attention: the paper's formula, and its limit without the second softmax."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import efficient_attn as ea

DIMS = ea.Dims(heads=4, kv_heads=2, head_dim=16, value_dim=12)
CAUSAL = ea.Mask(causal=True)


def draw(n: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    sizes = (2, 4, n, 16), (2, 2, n, 16), (2, 2, n, 12)
    return [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("mask", [CAUSAL, ea.Mask()])
def test_the_result_is_the_papers(mask: ea.Mask) -> None:
    q, k, v = draw(40)
    attn = ea.create("differential:l0=0.5", dims=DIMS, seed=3).double()
    with torch.no_grad():
        attn.gain.copy_(torch.linspace(0.5, 2, 12))  # type: ignore[operator]
    a, b, c, d = attn.vectors.detach()  # type: ignore[misc]
    weight = math.exp(float(a @ b)) - math.exp(float(c @ d)) + 0.5
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    hidden = torch.zeros(40, 40) if not mask.causal else torch.full((40, 40), float("-inf")).triu(1)
    maps = [(x @ y.mT / math.sqrt(8) + hidden).softmax(-1) for x, y in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)]
    out = F.rms_norm((maps[0] - weight * maps[1]) @ v, (12,), eps=1e-5) * torch.linspace(0.5, 2, 12) * 0.5
    torch.testing.assert_close(attn(*draw(40), mask), out, rtol=0, atol=1e-7)  # the parameters are of float32


def test_without_the_second_softmax_it_is_full_attention_on_half_the_width() -> None:
    q, k, v = draw(50)
    attn = ea.create("differential:l0=0:norm=false", dims=DIMS).double()
    with torch.no_grad():
        attn.vectors.zero_()  # type: ignore[operator]
    got, half = attn(q, k, v, CAUSAL), ea.create("full", dims=ea.Dims(heads=4, kv_heads=2, head_dim=8))
    want = half(q[..., :8].contiguous(), k[..., :8].contiguous(), v, CAUSAL)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_bad_options_are_refused() -> None:
    for spec, dims, message in (
        ("differential", ea.Dims(heads=2), "an even head_dim"),
        ("differential", ea.Dims(heads=2, head_dim=7), "an even head_dim"),
        ("differential:l0=1", DIMS, "l0 must be from 0 to below 1"),
    ):
        with pytest.raises(ea.UsageError, match=message):
            ea.create(spec, dims=dims)
