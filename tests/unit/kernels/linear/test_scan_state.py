"""Weights of chunks in the state of a scan: steady decays have the same weights in each chunk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.feature_maps import elu_plus_one, scaled_identity
from efficient_attn.kernels.linear import scan
from efficient_attn.kernels.linear.linear_config import KeyInputs, LinearConfig, replace_zero_by_one
from efficient_attn.kernels.linear.scan_state import compute_chunk_weights, compute_steady_weights
from efficient_attn.kernels.linear.sums import Sums

F64 = torch.float64


@settings(deadline=None, max_examples=30)
@given(rate=st.floats(0, 20), count=st.integers(1, 5), size=st.integers(2, 9), start=st.integers(0, 10**6))
def test_steady_weights_equal_general_chunk_weights(rate: float, count: int, size: int, start: int) -> None:
    rates = torch.tensor([rate, rate / 3], dtype=F64)
    a = rates[:, None] * (start + torch.arange(count * size, dtype=F64))
    want = compute_chunk_weights(a, a[:, 0] - rates, True, F64, count)
    steady = compute_steady_weights(rates[:, None], size, count, F64)
    for got, expected in zip(steady[:-1], want[:-1], strict=True):
        rows = expected.unflatten(0, (2, -1)) if len(expected) == 2 * count else expected[:, None]
        torch.testing.assert_close(got.view(2, -1, *rows.shape[2:]).expand_as(rows), rows, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("length", [1, 63, 65, 300])
def test_steady_and_general_scans_agree(length: int, divided: bool) -> None:
    """With previous sums and gradients; the scan is general if the feature map declares that it scales keys."""
    config = LinearConfig(elu_plus_one, replace_zero_by_one if divided else None, decays=True)
    general = replace(config, phi=replace(elu_plus_one, scaled=True))
    assert config.steady
    assert not general.steady
    g = torch.Generator().manual_seed(0)
    q, k, v, kv = (
        torch.randn(s, generator=g, dtype=F64).requires_grad_()
        for s in ((3, 2, length, 4), (3, length, 4), (3, length, 5), (3, 4, 5))
    )
    z = torch.rand(3, 4, generator=g, dtype=F64).requires_grad_()
    rates = torch.tensor([0.01, 0.3, 5.0], dtype=F64)
    logs = rates[:, None] * torch.arange(length, dtype=F64)
    results = []
    for each in (config, general):
        out, after = scan.scan(each, q, KeyInputs(k, v, None, logs), Sums(kv, z, -rates))
        grads = torch.autograd.grad(out.cos().sum() + after.kv.cos().sum(), (q, k, v, kv))
        results.append((out, after.kv, after.z, after.reference, *grads))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


def test_normaliser_is_not_summed_without_a_divisor() -> None:
    q, k, v = torch.ones(1, 1, 200, 4), torch.ones(1, 200, 4), torch.ones(1, 200, 4)
    normalisers = [
        scan.scan(LinearConfig(scaled_identity, divisor), q, KeyInputs(k, v, None, None))[1].z
        for divisor in (None, replace_zero_by_one)
    ]
    assert normalisers[0].count_nonzero() == 0
    assert normalisers[1].count_nonzero() == 4
