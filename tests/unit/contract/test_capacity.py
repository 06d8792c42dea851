"""The longest context in a budget of memory: what the states themselves weigh, and no formula of ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import efficient_attn as ea
from efficient_attn.contract.decode_state import KVCache, state_bytes

DIMS = {"heads": 8, "head_dim": 64}
# bytes a position of one sequence: keys and values of each key-value head
CACHED = [("full", {}, 8), ("full", {"kv_heads": 2}, 2), ("gqa:kv_heads=4", {}, 4), ("mqa", {}, 1)]


def _made(name: str, **dims: Any) -> ea.Attention:
    return ea.create(name, dims=ea.Dims(**DIMS | dims))


@pytest.mark.parametrize(("name", "dims", "kv_heads"), CACHED)
@pytest.mark.parametrize(("batch", "dtype"), [(1, torch.float32), (3, torch.float32), (1, torch.bfloat16)])
def test_a_cache_of_all_keys_and_values_fits_as_often_as_the_budget_holds_a_position(
    name: str, dims: dict[str, int], kv_heads: int, batch: int, dtype: torch.dtype
) -> None:
    attn, position = _made(name, **dims), 2 * kv_heads * 64 * batch * dtype.itemsize
    for budget in (16 * 10**9, position, 7 * position, 7 * position - 1):
        assert ea.longest_context(attn, budget, batch=batch, dtype=dtype) == budget // position


def test_values_may_be_narrower_than_keys() -> None:
    assert ea.longest_context(_made("full", value_dim=32), 10**6) == 10**6 // (8 * (64 + 32) * 4)


def test_the_longest_context_is_one_that_can_be_allocated_and_the_next_is_too_large() -> None:
    for name in ("full", "bigbird", "mqa"):
        attn, budget = _made(name), 10**6
        longest = ea.longest_context(attn, budget) or 0
        assert state_bytes(attn.init_state(1, longest)) <= budget < state_bytes(attn.init_state(1, longest + 1))


@pytest.mark.parametrize("name", ["sliding_window", "attention_sinks", "linear", "performer", "retention"])
def test_what_does_not_grow_fits_at_any_length(name: str) -> None:
    assert ea.longest_context(_made(name), 16 * 10**9) is None


def test_a_window_that_does_not_fit_is_a_cache_until_it_is_full() -> None:
    position = 2 * 8 * 64 * 4
    attn = _made("sliding_window:window=99")
    assert ea.longest_context(attn, 40 * position) == 40
    assert ea.longest_context(attn, 100 * position) is None
    assert ea.longest_context(attn, 100 * position - 1) == 99


def test_a_window_of_millions_does_not_grow_either() -> None:
    attn, position = _made("sliding_window:window=3000000"), 2 * 8 * 64 * 4
    assert ea.longest_context(attn, 3_000_001 * position) is None
    assert ea.longest_context(attn, 3_000_000 * position) == 3_000_000


def test_not_even_one_position_may_fit() -> None:
    assert ea.longest_context(_made("full"), 2 * 8 * 64 * 4 - 1) == 0
    assert ea.longest_context(_made("linear"), 1000) == 0


def test_every_mechanism_that_decodes_can_be_weighed() -> None:
    for name in ea.names():
        attn = _made(name, max_len=64)
        if attn.traits.decode:
            longest = ea.longest_context(attn, 10**9)
            assert longest is None or longest > 0, name
        else:
            with pytest.raises(ea.UnsupportedError, match="cannot decode"):
                ea.longest_context(attn, 10**9)


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_of_nothing_is_refused(budget: int) -> None:
    with pytest.raises(ea.UsageError, match=f"at least 1 byte, got {budget}"):
        ea.longest_context(_made("full"), budget)


@pytest.mark.parametrize(
    ("name", "dims", "says"),
    [
        ("full", {}, "full allocates its decode state in its first step; .* dims that set heads and head_dim$"),
        ("mqa", {}, "dims that set head_dim$"),
        ("full", {"head_dim": 64}, "dims that set heads$"),
        ("linear", {"heads": 8}, "dims that set head_dim$"),
    ],
)
def test_dims_that_are_not_known_are_asked_for(name: str, dims: dict[str, int], says: str) -> None:
    with pytest.raises(ea.UsageError, match=says):
        ea.longest_context(ea.create(name, dims=ea.Dims(**dims)), 10**9)


def test_a_state_that_only_its_first_step_allocates_cannot_be_weighed() -> None:
    class Late(ea.SoftmaxAttention):
        dims = ea.Dims(heads=8, head_dim=64)

        def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
            return KVCache(max_len)

    with pytest.raises(ea.UsageError, match=r"Late allocates .* its dims do not determine its size"):
        ea.longest_context(Late(), 10**9)
