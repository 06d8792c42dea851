"""Random unions of patterns compared with the dense float64 reference implementation."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.patterns import Band, Blocks, Keys, Pattern, Queries
from efficient_attn.testing.tensor_comparison import assert_close
from efficient_attn.variants.sparse import sparse_attention as sparse
from efficient_attn.variants.sparse.sparse_attention import SparseAttention

numbers = st.integers
parts = st.one_of(
    st.builds("sliding_window:window={}".format, numbers(0, 40)),
    st.builds("dilated_window:window={}:dilation={}".format, numbers(0, 9), numbers(1, 20)),
    st.builds("global_tokens:n_global={}".format, numbers(0, 20)),
    st.builds("random_blocks:n_random={}:block_size={}".format, numbers(0, 3), numbers(1, 40)),
    st.builds("strided:stride={}".format, numbers(1, 50)),
    st.builds("fixed:stride={}:summary={}".format, numbers(6, 50), numbers(1, 6)),
    st.builds("longformer:window={}:n_global={}".format, numbers(0, 20), numbers(0, 9)),
    st.builds("attention_sinks:window={}:n_sink={}".format, numbers(0, 20), numbers(1, 9)),
)
unions = st.lists(parts, min_size=1, max_size=3, unique=True).map("|".join)


@st.composite
def masks(draw: st.DrawFn, n: int, m: int) -> ea.Mask:
    lengths = draw(st.none() | st.lists(numbers(0, m), min_size=2, max_size=2).map(torch.tensor))
    start = draw(st.none() | st.sampled_from([-20, 0, 30]))
    return ea.Mask(causal=draw(st.booleans()), key_lengths=lengths, query_start=start)


def _gradients(attn: ea.Attention, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask) -> tuple[Tensor, ...]:
    out = attn(q, k, v, mask)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return out, *torch.autograd.grad((out * weight).sum(), (q, k, v))


@settings(max_examples=120, deadline=None)
@given(unions, numbers(1, 200), numbers(1, 200), st.sampled_from([1, 2]), st.data())
def test_a_union_equals_the_reference(spec: str, n: int, m: int, group: int, data: st.DataObject) -> None:
    mask = data.draw(masks(n, m))
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, length: int) -> Tensor:
        return torch.randn(2, heads, length, 4, generator=generator, dtype=torch.float64).requires_grad_()

    q, k, v = draw(2 * group, n), draw(2, m), draw(2, m)
    fast, dense = ea.create(spec), ea.create(spec, backend="dense")
    if mask.causal or fast.traits.bidirectional:
        pairs = zip(_gradients(fast, q, k, v, mask), _gradients(dense, q, k, v, mask), strict=True)
        for name, (got, want) in zip(("output", "q", "k", "v"), pairs, strict=True):
            assert_close(got, want, f"{spec}: {name}, N={n}, M={m}")


@settings(max_examples=40, deadline=None)
@given(unions, st.lists(numbers(1, 30), min_size=1, max_size=6))
def test_decoding_a_union_gives_the_forward_rows(spec: str, steps: list[int]) -> None:
    attn, n = ea.create(spec), sum(steps)
    q, k, v = (torch.randn(1, 2, n, 4, dtype=torch.float64) for _ in range(3))
    want = attn(q, k, v, ea.Mask(causal=True))
    state, at = attn.init_state(1, n, torch.float64), 0
    for size in steps:
        rows = slice(at, at + size)
        out, state = attn.step(q[:, :, rows], k[:, :, rows], v[:, :, rows], state)
        assert_close(out, want[:, :, rows], f"{spec}: positions {at} to {at + size - 1}")
        at += size


@pytest.mark.parametrize("spec", ["sliding_window:window=5|attention_sinks:window=3:n_sink=2", "longformer:window=4"])
def test_unions_of_bounded_patterns_decode_in_constant_memory(spec: str) -> None:
    attn = ea.create(spec, dims=ea.Dims(heads=2, head_dim=4))
    sizes = {ea.state_bytes(attn.init_state(1, n)) for n in (500, 5000, 50_000)}
    assert len(sizes) == 1


def test_the_spec_of_a_union_is_independent_of_order() -> None:
    one, other = (ea.create("|".join(x)) for x in permutations(("strided:stride=8", "sliding_window:window=2")))
    assert one.spec == other.spec
    assert isinstance(one, SparseAttention)
    assert isinstance(one.pattern, Pattern)


@pytest.mark.parametrize("backend", ["adaptive", "parts", "cpp", "masked", "dense"])
@pytest.mark.parametrize("pattern", [Band(3, 5), Band(2, 9, 2) | Keys(1, 3), Queries(4) | Band(0, 2), Blocks(4)])
def test_decoding_patterns_with_holes_gives_the_forward_rows(pattern: Pattern, backend: str) -> None:
    """Including rows that see no key at all."""
    attn = SparseAttention(pattern)
    q, k, v = (torch.randn(1, 2, 30, 4, dtype=torch.float64) for _ in range(3))
    want = attn(q, k, v, ea.Mask(causal=True))
    attn.backend = backend
    state = attn.init_state(1, 30, torch.float64)
    for i in range(30):
        rows = slice(i, i + 1)
        out, state = attn.step(q[:, :, rows], k[:, :, rows], v[:, :, rows], state)
        assert_close(out, want[:, :, rows], f"{pattern}, position {i}")


def test_the_dense_backend_decodes_with_the_reference(monkeypatch) -> None:
    monkeypatch.setattr(sparse, "attend_fused", None)  # a call would fail
    attn, q = ea.create("longformer:window=3:n_global=2:backend=dense"), torch.randn(1, 1, 1, 8)
    assert_close(attn.step(q, q, q, attn.init_state(1, 4))[0], q, "the first position sees itself", tolerance=1e-6)
