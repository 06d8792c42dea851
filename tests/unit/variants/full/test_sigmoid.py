"""Sigmoid attention: the paper's formula with every mask, and a fixed length for decoding."""

from __future__ import annotations

import math

import pytest
import torch

import efficient_attn as ea

DIMS = ea.Dims(heads=4, kv_heads=2, head_dim=16, value_dim=12)


def draw(n: int, m: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    sizes = (2, 4, n, 16), (2, 2, m, 16), (2, 2, m, 12)
    return [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("length", [None, 50])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (300, 300), (5, 300), (300, 270)])
def test_the_result_is_the_papers(n: int, m: int, causal: bool, length: int | None) -> None:
    q, k, v = draw(n, m)
    valid = torch.rand(2, m, generator=torch.Generator().manual_seed(1)) < 0.8
    spec = "sigmoid" if length is None else f"sigmoid:length={length}"
    got = ea.create(spec, dims=DIMS)(q, k, v, ea.Mask(causal=causal, key_mask=valid))
    weights = (q @ k.repeat_interleave(2, 1).mT / 4 - math.log(length or m)).sigmoid() * valid[:, None, None]
    weights = weights.tril(m - n) if causal else weights
    torch.testing.assert_close(got, weights @ v.repeat_interleave(2, 1), rtol=0, atol=1e-12)


def test_only_a_fixed_length_decodes() -> None:
    assert not ea.create("sigmoid", dims=DIMS).traits.decode
    assert ea.create("sigmoid:length=99", dims=DIMS).traits.decode
    with pytest.raises(ea.UsageError, match="length must be at least 1"):
        ea.create("sigmoid:length=0", dims=DIMS)
