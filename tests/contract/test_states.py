"""What decoding keeps, in bytes, for every mechanism of the registry that decodes: the law of its kind of state."""

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


def made(spec: str, s: Sizes) -> tuple[ea.Attention, Sizes]:
    """The mechanism for these sizes, but with the key-value heads that it requires."""
    s = s._replace(kv_heads=subject(spec).attn.kv_heads or s.kv_heads)
    dims = Dims(heads=2 * s.kv_heads, kv_heads=s.kv_heads, head_dim=s.head_dim, value_dim=s.value_dim, max_len=FAR)
    attn = ea.create(spec, dims=dims)
    if reason := attn.why_not_dtype(s.dtype):
        pytest.skip(reason)
    return attn, s


def position_bytes(attn: ea.Attention, state: Any, s: Sizes) -> int:
    """What the state keeps of one position."""
    if isinstance(state, LatentCache):
        assert attn.key_dim is not None
        return s.batch * attn.key_dim * s.dtype.itemsize
    return s.batch * s.kv_heads * (s.head_dim + s.value_dim) * s.dtype.itemsize


def kept(attn: ea.Attention, state: Any, positions: int) -> int:
    """Of how many positions the state keeps something."""
    if not isinstance(state, RollingCache):
        return positions
    assert isinstance(attn, SparseAttention)
    assert attn.pattern.reach is not None
    return min(positions, attn.pattern.reach.prefix + attn.pattern.reach.back + 1)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: f"N={s.positions}")
@pytest.mark.parametrize("spec", DECODING)
def test_a_state_is_as_large_as_its_law(spec: str, sizes: Sizes) -> None:
    """A cache holds the positions in reach, whatever is no cache the same for any number of them."""
    attn, s = made(spec, sizes)
    state = attn.init_state(s.batch, s.positions, s.dtype)
    far = attn.init_state(s.batch, FAR, s.dtype, "meta")
    assert type(far) is type(state)
    if isinstance(state, Cache):
        for one, positions in ((state, s.positions), (far, FAR)):
            assert ea.state_bytes(one) == position_bytes(attn, one, s) * kept(attn, one, positions)
    else:
        assert ea.state_bytes(far) == ea.state_bytes(state) > 0


@pytest.mark.parametrize("spec", SPARSE)
def test_a_pattern_keeps_all_positions_only_where_its_reach_has_no_bound(spec: str) -> None:
    attn, _ = made(spec, SIZES[0])
    assert isinstance(attn, SparseAttention)
    state = attn.init_state(1, 8)
    assert type(state) is (KVCache if attn.pattern.reach is None else RollingCache)


counts = st.integers(1, 40)


@settings(deadline=None)
@given(counts, counts, counts, counts, st.integers(1, 3000), st.sampled_from([2, 4, 8]))
def test_full_attention_keeps_two_vectors_a_position_and_key_value_head(
    batch: int, kv_heads: int, head_dim: int, value_dim: int, positions: int, size: int
) -> None:
    dims = Dims(heads=3 * kv_heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=value_dim)
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[size]
    state = ea.create("full", dims=dims).init_state(batch, positions, dtype, "meta")
    assert ea.state_bytes(state) == batch * kv_heads * positions * (head_dim + value_dim) * size


def buffers(state: Any) -> dict[str, tuple[int, int]]:
    """Where each tensor of a cache lies, and how large its memory is."""
    tensors = {f.name: getattr(state, f.name) for f in fields(state)}
    return {name: (x.data_ptr(), x.untyped_storage().nbytes()) for name, x in tensors.items() if isinstance(x, Tensor)}


@pytest.mark.parametrize("spec", CACHES)
def test_steps_write_into_the_memory_that_the_state_was_made_with(spec: str) -> None:
    attn, s = made(spec, Sizes(2, 8, 5, 60, 2, torch.float32))
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
def test_rows_of_a_state_go_on_by_themselves(spec: str) -> None:
    """A copy with rows taken, left out and repeated gives what states of these rows alone give, and leaves its own."""
    attn, s = made(spec, Sizes(2, 8, 5, 60, 2, torch.float64))
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
    )  # the first copy has written into nothing of the state
    want, _ = later.step(attn, after_prompt())
    torch.testing.assert_close(got, want[rows], rtol=0, atol=1e-12)
    torch.testing.assert_close(later.step(attn, state)[0], want, rtol=0, atol=1e-12)
