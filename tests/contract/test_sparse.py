"""Every registered sparse mechanism: memory, limits that equal full attention, and cache sizes."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.patterns import Geometry
from efficient_attn.testing.tensor_comparison import assert_close
from efficient_attn.variants.sparse import sparse_attention as sparse
from efficient_attn.variants.sparse.sparse_attention import SparseAttention

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
def test_maximal_options_equal_full_attention(limit: str, causal: bool) -> None:
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


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("spec", LONG)
def test_65536_positions_fit_in_256_mib_above_their_inputs(spec: str) -> None:
    """A dense mask of one byte a pair would take 4 GiB."""
    n = 1 << 16
    attn = ea.create(spec, dims=ea.Dims(max_len=n))
    q, k, v = (torch.randn(1, 1, n, 64) for _ in range(3))
    mask = ea.Mask(causal=not attn.traits.bidirectional)
    peak = measure_footprint(lambda: attn(q, k, v, mask), device="cpu").peak
    assert peak is not None
    assert peak <= 6 * q.numel() * 4 < 256 << 20


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("spec", LONG)
def test_gradients_of_65536_positions_fit_in_256_mib(spec: str) -> None:
    n = 1 << 16
    attn = ea.create(spec, dims=ea.Dims(max_len=n))
    q, k, v = (torch.randn(1, 1, n, 64, requires_grad=True) for _ in range(3))
    mask = ea.Mask(causal=True)

    peak = measure_footprint(lambda: torch.autograd.grad(attn(q, k, v, mask).sum(), (q, k, v)), device="cpu").peak
    assert peak is not None
    assert peak <= 12 * q.numel() * 4 < 256 << 20


def test_a_cuda_backend_is_refused_on_the_cpu(monkeypatch) -> None:
    attn, q = ea.create("sliding_window:window=4"), torch.randn(1, 1, 8, 16)
    if not torch.cuda.is_available():
        with pytest.raises(ea.UnsupportedError, match="'flex' is not available: needs a CUDA device"):
            ea.create("sliding_window:window=4:backend=flex")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    attn.backend = "flex"
    with pytest.raises(ea.UnsupportedError, match="backend 'flex' runs on cuda only, not on cpu"):
        attn(q, q, q)


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        ("sliding_window:window=10", 11),
        ("dilated_window:window=3:dilation=4", 13),
        ("attention_sinks:window=10:n_sink=4", 15),
        ("global_tokens:n_global=5", 6),
        ("longformer:window=10:n_global=5", 16),
    ],
)
def test_bounded_patterns_cache_only_positions_in_reach(spec: str, slots: int) -> None:
    attn = ea.create(spec, dims=ea.Dims(heads=2, head_dim=8))
    assert ea.state_bytes(attn.init_state(3, 100_000)) == 2 * 3 * 2 * slots * 8 * 4
    assert ea.state_bytes(attn.init_state(3, 4)) == 2 * 3 * 2 * 4 * 8 * 4


@pytest.mark.parametrize("spec", ["strided:stride=4", "fixed:stride=8:summary=1", "random_blocks", "bigbird"])
def test_unbounded_patterns_cache_everything_and_read_visible_keys(spec: str, monkeypatch) -> None:
    attn, n = ea.create(spec, dims=ea.Dims(heads=1, head_dim=8)), 2000
    state = attn.init_state(1, n)
    assert ea.state_bytes(state) == 2 * n * 8 * 4
    q, k, v = torch.randn(3, 1, 1, n, 8)
    _, state = attn.step(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], state)
    read = []
    monkeypatch.setattr(sparse, "attend_fused", lambda q, k, v, **rest: read.append(k.shape[2]) or q)
    attn.step(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], state)
    dense = attn.pattern.allows(n - 1, torch.arange(n), Geometry(n, n, 0, True))  # pyright: ignore
    assert read == [int(dense.sum())]


def test_loading_a_state_dict_replaces_the_pattern_that_compiled_code_reads() -> None:
    attn, other = (ea.create("bigbird:window=2:n_global=1:n_random=2:block_size=4", seed=seed) for seed in (0, 1))
    assert attn._pattern_text != other._pattern_text  # pyright: ignore
    attn.load_state_dict(other.state_dict())
    assert attn._pattern_text == other._pattern_text  # pyright: ignore
