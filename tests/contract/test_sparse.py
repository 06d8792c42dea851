"""What holds for every sparse mechanism of the registry: it is sparse, and its limits are full attention."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.bench.memory import footprint
from efficient_attn.families.sparse import SparseAttention
from efficient_attn.testing.compare import assert_close

SPARSE = [
    name for name in ea.names(family="sparse") if isinstance(ea.create(name, dims=ea.Dims(max_len=64)), SparseAttention)
]
LONG = [{"fixed": "fixed:stride=256:summary=2"}.get(name, name) for name in SPARSE]  # the default's N^2 / 16 takes long
LIMITS = (
    "sliding_window:window={n}",
    "dilated_window:window={n}:dilation=1",
    "global_tokens:n_global={n}",
    "random_blocks:n_random={n}:block_size=16",
    "random_blocks:n_random={n}:block_size=1",
    "random_blocks:n_random=0:block_size={n}",
    "strided:stride=1",
    "strided:stride={n}",
    "fixed:stride={n}:summary=1",
    "fixed:stride=16:summary=16",
    "longformer:window={n}:n_global=3",
    "longformer:window=2:n_global={n}",
    "bigbird:window=1:n_global=1:n_random={n}:block_size=8",
    "attention_sinks:window={n}",
    "attention_sinks:window=1:n_sink={n}",
)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
def test_the_limit_is_full_attention(limit: str, causal: bool) -> None:
    n = 150
    attn, full = ea.create(limit.format(n=n)), ea.create("full")
    if not causal and not attn.traits.bidirectional:
        pytest.skip("causal only")
    q, k, v = (torch.randn(2, 2, n, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    answers = []
    for mechanism in (attn, full):
        out = mechanism(q, k, v, ea.Mask(causal=causal))
        answers.append((out, *torch.autograd.grad(out.cos().sum(), (q, k, v))))
    for got, want in zip(*answers, strict=True):
        assert_close(got, want, limit)
    assert attn.pairs(n, n, causal) == full.pairs(n, n, causal)


@pytest.mark.parametrize("spec", LONG)
def test_65536_positions_fit_in_256_mib_above_their_inputs(spec: str) -> None:
    """A dense mask of one byte a pair would take 4 GiB."""
    n = 1 << 16
    attn = ea.create(spec, dims=ea.Dims(max_len=n))
    q, k, v = (torch.randn(1, 1, n, 64) for _ in range(3))
    mask = ea.Mask(causal=not attn.traits.bidirectional)
    peak = footprint(lambda: attn(q, k, v, mask), device="cpu").peak
    assert peak is not None
    assert peak <= 6 * q.numel() * 4 < 256 << 20


@pytest.mark.parametrize("spec", LONG)
def test_65536_positions_have_a_gradient_within_the_same(spec: str) -> None:
    n = 1 << 16
    attn = ea.create(spec, dims=ea.Dims(max_len=n))
    q, k, v = (torch.randn(1, 1, n, 64, requires_grad=True) for _ in range(3))
    mask = ea.Mask(causal=True)

    peak = footprint(lambda: torch.autograd.grad(attn(q, k, v, mask).sum(), (q, k, v)), device="cpu").peak
    assert peak is not None
    assert peak <= 12 * q.numel() * 4 < 256 << 20
