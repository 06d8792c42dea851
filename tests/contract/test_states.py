"""Sizes of decode states, for every registered mechanism that decodes."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import SPECS
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.decode_state import KVCache, LatentCache, RollingCache, select_state_rows
from efficient_attn.contract.shapes import Dims
from efficient_attn.testing import Subject
from efficient_attn.variants.full.forgetting import ForgettingCache, ForgettingRing
from efficient_attn.variants.full.windowed_softmax import WindowedSoftmax
from efficient_attn.variants.selected.block_attention import SummaryCache
from efficient_attn.variants.selected.compressed_cache import CompressedCache
from efficient_attn.variants.selected.dsa import IndexedCache
from efficient_attn.variants.selected.knorm import KNorm
from efficient_attn.variants.selected.quest import PagedCache
from efficient_attn.variants.sparse.sparse_attention import SparseAttention

Cache = KVCache | RollingCache | LatentCache

subject = cache(Subject)
DECODING = [spec for spec in SPECS if subject(spec).traits.decode]
SPARSE = [spec for spec in DECODING if isinstance(subject(spec).attn, SparseAttention)]
CACHES = [spec for spec in DECODING if isinstance(subject(spec).attn.init_state(1, 8), Cache)]
FAR = 10**6


class Sizes(NamedTuple):
    kv_heads: int
    head_dim: int
    value_dim: int
    positions: int
    batch: int
    dtype: torch.dtype


SIZES = (
    Sizes(1, 8, 8, 1, 1, torch.float32),
    Sizes(2, 8, 5, 130, 3, torch.float64),
    Sizes(4, 16, 24, 300, 2, torch.float16),
    Sizes(3, 6, 9, 2000, 1, torch.bfloat16),
)


def make(spec: str, s: Sizes) -> tuple[ea.Attention, Sizes]:
    """The mechanism for these sizes, with its own number of key-value heads if it has one."""
    s = s._replace(kv_heads=subject(spec).attn.kv_heads or s.kv_heads)
    dims = Dims(heads=2 * s.kv_heads, kv_heads=s.kv_heads, head_dim=s.head_dim, value_dim=s.value_dim, max_len=FAR)
    attn = ea.create(spec, dims=dims)
    if reason := attn.why_not_dtype(s.dtype):
        pytest.skip(reason)
    return attn, s


def position_bytes(attn: ea.Attention, state: Any, s: Sizes) -> int:
    """The bytes that a cache stores for each position."""
    if isinstance(state, LatentCache):
        assert attn.key_dim is not None
        return s.batch * attn.key_dim * s.dtype.itemsize
    return s.batch * s.kv_heads * (s.head_dim + s.value_dim) * s.dtype.itemsize


def bound_bytes(state: Any, positions: int, s: Sizes) -> int:
    """The bytes of what a cache stores besides keys and values: two bounds of each page, the sums or means of each
    block, sums of gates, or the keys of an indexer; sums are in float64."""
    if isinstance(state, CompressedCache):
        return s.batch * s.kv_heads * -(-positions // state.block) * (s.head_dim + s.value_dim) * 8
    if isinstance(state, SummaryCache):
        return s.batch * s.kv_heads * (positions // state.block) * s.head_dim * 8
    if isinstance(state, IndexedCache):
        assert state.index_keys is not None
        return s.batch * positions * state.index_keys.shape[3] * s.dtype.itemsize
    if isinstance(state, ForgettingCache | ForgettingRing):
        return s.batch * s.kv_heads * state.slots * 8
    if not isinstance(state, PagedCache):
        return 0
    return s.batch * s.kv_heads * 2 * -(-positions // state.page) * s.head_dim * s.dtype.itemsize


def count_cached(attn: ea.Attention, state: Any, positions: int) -> int:
    """The number of positions that a cache stores."""
    if isinstance(attn, KNorm):
        return min(positions, attn.window + attn.keys)
    if not isinstance(state, RollingCache):
        return positions
    if isinstance(attn, WindowedSoftmax):
        return min(positions, 1 + int(attn.window or 0))
    assert isinstance(attn, SparseAttention)
    assert attn.pattern.reach is not None
    return min(positions, attn.pattern.reach.prefix + attn.pattern.reach.back + 1)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: f"N={s.positions}")
@pytest.mark.parametrize("spec", DECODING)
def test_state_bytes_equal_the_formula(spec: str, sizes: Sizes) -> None:
    """A cache stores the positions in reach; the size of any other state is independent of the length."""
    attn, s = make(spec, sizes)
    state = attn.init_state(s.batch, s.positions, s.dtype)
    far = attn.init_state(s.batch, FAR, s.dtype, "meta")
    assert type(far) is type(state)
    if isinstance(state, Cache):
        for one, positions in ((state, s.positions), (far, FAR)):
            stored = position_bytes(attn, one, s) * count_cached(attn, one, positions)
            assert ea.state_bytes(one) == stored + bound_bytes(one, positions, s)
    else:
        assert ea.state_bytes(far) == ea.state_bytes(state) > 0


@pytest.mark.parametrize("spec", SPARSE)
def test_only_unbounded_patterns_cache_all_positions(spec: str) -> None:
    attn, _ = make(spec, SIZES[0])
    assert isinstance(attn, SparseAttention)
    state = attn.init_state(1, 8)
    assert type(state) is (KVCache if attn.pattern.reach is None else RollingCache)


counts = st.integers(1, 40)


@settings(deadline=None)
@given(counts, counts, counts, counts, st.integers(1, 3000), st.sampled_from([2, 4, 8]))
def test_full_attention_caches_a_key_and_a_value_per_position_and_head(
    batch: int, kv_heads: int, head_dim: int, value_dim: int, positions: int, size: int
) -> None:
    dims = Dims(heads=3 * kv_heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim)
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[size]
    state = ea.create("full", dims=dims).init_state(batch, positions, dtype, "meta")
    assert ea.state_bytes(state) == batch * kv_heads * positions * (head_dim + value_dim) * size


def buffers(state: Any) -> dict[str, tuple[int, int]]:
    """Address and size in bytes of each tensor of a cache."""
    tensors = {f.name: getattr(state, f.name) for f in fields(state)}
    return {name: (x.data_ptr(), x.untyped_storage().nbytes()) for name, x in tensors.items() if isinstance(x, Tensor)}


@pytest.mark.parametrize("spec", CACHES)
def test_steps_write_in_place(spec: str) -> None:
    attn, s = make(spec, Sizes(2, 8, 5, 60, 2, torch.float32))
    state = attn.init_state(s.batch, s.positions)
    before = buffers(state)
    assert before
    shape = subject(spec).shape(s.positions, batch=s.batch, heads=2 * s.kv_heads, kv_heads=s.kv_heads, value_dim=5)
    call = subject(spec).draw(shape, mask=ea.Mask(causal=True), dtype=s.dtype)
    at = 0
    for size in (3, 1, 1, 20, 1, 33, 1):
        _, state = call.both(slice(at, at + size)).step(attn, state)
        assert buffers(state) == before
        at += size


@pytest.mark.parametrize("spec", DECODING)
def test_selected_rows_of_a_state_decode_independently(spec: str) -> None:
    """Selected and repeated rows give the original rows' results, and steps of the copy do not change the state."""
    attn, s = make(spec, Sizes(2, 8, 5, 60, 2, torch.float64))
    shape = subject(spec).shape(s.positions, batch=s.batch, heads=2 * s.kv_heads, kv_heads=s.kv_heads, value_dim=5)
    call = subject(spec).draw(shape, mask=ea.Mask(causal=True), dtype=s.dtype)
    prompt, later = call.both(slice(0, 40)), call.both(slice(40, 43))

    def after_prompt() -> Any:
        return prompt.step(attn, attn.init_state(s.batch, s.positions, s.dtype))[1]

    state, rows = after_prompt(), [1, 0, 1]
    mixed = later.change(lambda x: x[rows])
    got, _ = mixed.step(attn, select_state_rows(state, s.batch, rows))
    got, _ = mixed.step(
        attn, select_state_rows(state, s.batch, rows)
    )  # the step of the first copy has not changed the state
    want, _ = later.step(attn, after_prompt())
    torch.testing.assert_close(got, want[rows], rtol=0, atol=1e-12)
    torch.testing.assert_close(later.step(attn, state)[0], want, rtol=0, atol=1e-12)
