"""The longest context in a memory budget, from the bytes of allocated states."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import efficient_attn as ea
from efficient_attn.contract.decode_state import KVCache, state_bytes

DIMS = {"heads": 8, "head_dim": 64}
# spec, dims, number of key-value heads that are cached
CACHED = [("full", {}, 8), ("full", {"kv_heads": 2}, 2), ("gqa:kv_heads=4", {}, 4), ("mqa", {}, 1)]


def _make(name: str, **dims: Any) -> ea.Attention:
    return ea.create(name, dims=ea.Dims(**DIMS | dims))


@pytest.mark.parametrize(("name", "dims", "kv_heads"), CACHED)
@pytest.mark.parametrize(("batch", "dtype"), [(1, torch.float32), (3, torch.float32), (1, torch.bfloat16)])
def test_longest_context_is_the_budget_divided_by_bytes_per_position(
    name: str, dims: dict[str, int], kv_heads: int, batch: int, dtype: torch.dtype
) -> None:
    attn, position = _make(name, **dims), 2 * kv_heads * 64 * batch * dtype.itemsize
    for budget in (16 * 10**9, position, 7 * position, 7 * position - 1):
        assert ea.longest_context(attn, budget, batch=batch, dtype=dtype) == budget // position


def test_longest_context_respects_the_width_of_values() -> None:
    assert ea.longest_context(_make("full", value_dim=32), 10**6) == 10**6 // (8 * (64 + 32) * 4)


def test_a_state_of_the_longest_context_just_fits_the_budget() -> None:
    for name in ("full", "bigbird", "mqa"):
        attn, budget = _make(name), 10**6
        longest = ea.longest_context(attn, budget) or 0
        assert state_bytes(attn.init_state(1, longest)) <= budget < state_bytes(attn.init_state(1, longest + 1))


@pytest.mark.parametrize("name", ["sliding_window", "attention_sinks", "linear", "performer", "retention"])
def test_constant_states_have_no_longest_context(name: str) -> None:
    assert ea.longest_context(_make(name), 16 * 10**9) is None


def test_a_window_larger_than_the_budget_limits_the_context() -> None:
    position = 2 * 8 * 64 * 4
    attn = _make("sliding_window:window=99")
    assert ea.longest_context(attn, 40 * position) == 40
    assert ea.longest_context(attn, 100 * position) is None
    assert ea.longest_context(attn, 100 * position - 1) == 99


def test_windows_of_millions_of_keys_are_supported() -> None:
    attn, position = _make("sliding_window:window=3000000"), 2 * 8 * 64 * 4
    assert ea.longest_context(attn, 3_000_001 * position) is None
    assert ea.longest_context(attn, 3_000_000 * position) == 3_000_000


def test_longest_context_is_zero_if_no_position_fits() -> None:
    assert ea.longest_context(_make("full"), 2 * 8 * 64 * 4 - 1) == 0
    assert ea.longest_context(_make("linear"), 1000) == 0


def test_longest_context_supports_all_mechanisms_that_decode() -> None:
    for name in ea.names():
        attn = _make(name, max_len=64)
        if attn.traits.decode:
            longest = ea.longest_context(attn, 10**9)
            assert longest is None or longest > 0, name
        else:
            with pytest.raises(ea.UnsupportedError, match="cannot decode"):
                ea.longest_context(attn, 10**9)


@pytest.mark.parametrize("budget", [0, -1])
def test_budgets_below_one_byte_are_refused(budget: int) -> None:
    with pytest.raises(ea.UsageError, match=f"at least 1 byte, got {budget}"):
        ea.longest_context(_make("full"), budget)


@pytest.mark.parametrize(
    ("name", "dims", "message"),
    [
        ("full", {}, "full allocates its decode state in its first step; .* dims that set heads and head_dim$"),
        ("mqa", {}, "dims that set head_dim$"),
        ("full", {"head_dim": 64}, "dims that set heads$"),
        ("linear", {"heads": 8}, "dims that set head_dim$"),
    ],
)
def test_missing_dims_are_reported(name: str, dims: dict[str, int], message: str) -> None:
    with pytest.raises(ea.UsageError, match=message):
        ea.longest_context(ea.create(name, dims=ea.Dims(**dims)), 10**9)


def test_states_allocated_by_the_first_step_are_refused() -> None:
    class Late(ea.SoftmaxAttention):
        dims = ea.Dims(heads=8, head_dim=64)

        def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
            return KVCache(max_len)

    with pytest.raises(ea.UsageError, match=r"Late allocates .* its dims do not determine its size"):
        ea.longest_context(Late(), 10**9)
