"""Decode states: contents of caches, their bytes, preallocation, and selection of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from efficient_attn.contract.decode_state import KVCache, RollingCache, preallocate, select_state_rows, state_bytes
from efficient_attn.errors import UnsupportedError, UsageError


def positions_as_keys_and_values(length: int, *, heads: int = 1) -> tuple[Tensor, Tensor]:
    """Keys and values that hold their own position."""
    p = torch.arange(length, dtype=torch.float32).view(1, 1, -1, 1).expand(2, heads, -1, -1)
    return p.repeat(1, 1, 1, 3), p.repeat(1, 1, 1, 2) + 0.5


def fill(cache, split: list[int]):
    k, v = positions_as_keys_and_values(sum(split))
    start = 0
    for t in split:
        cache = cache.append(k[:, :, start : start + t], v[:, :, start : start + t])
        start += t
    return cache


splits = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(splits, st.integers(0, 12), st.integers(0, 6))
def test_rolling_cache_keeps_the_prefix_and_the_last_positions(split: list[int], capacity: int, prefix: int) -> None:
    total = sum(split)
    cache = fill(RollingCache(capacity, max_len=total, prefix=prefix), split)
    keys, values = cache.filled()
    first = min(prefix, total)
    kept = [*range(first), *range(max(first, total - capacity), total)]
    assert cache.length == total
    assert cache.slots == capacity + prefix
    assert sorted(cache.positions().tolist()) == kept
    for slot, p in enumerate(cache.positions().tolist()):
        assert slot == (p if p < prefix else prefix + (p - prefix) % capacity)
    assert torch.equal(keys[0, 0, :, 0], cache.positions().float())
    assert torch.equal(values[0, 0, :, 0], cache.positions() + 0.5)
    ordered_keys, ordered_values = cache.in_order()
    assert ordered_keys[0, 0, :, 0].tolist() == kept
    assert ordered_values[1, 0, :, 1].tolist() == [p + 0.5 for p in kept]


@settings(max_examples=50, deadline=None)
@given(splits)
def test_kv_cache_keeps_all_positions_in_order(split: list[int]) -> None:
    total = sum(split)
    cache = fill(KVCache(total + 3), split)
    k, v = positions_as_keys_and_values(total)
    keys, values = cache.filled()
    assert torch.equal(keys, k)
    assert torch.equal(values, v)


@pytest.mark.parametrize("cache", [KVCache(4), RollingCache(2, max_len=4), RollingCache(4, max_len=4)])
def test_appending_beyond_max_len_is_refused(cache) -> None:
    full = fill(cache, [3, 1])
    k, v = positions_as_keys_and_values(1)
    with pytest.raises(UsageError, match="made for max_len=4 positions, 5 are needed"):
        full.append(k, v)
    with pytest.raises(UsageError, match="5 are needed"):
        fill(cache, [5])


@pytest.mark.parametrize(
    "change", [lambda x: x[:1], lambda x: x.repeat(1, 2, 1, 1), lambda x: x[..., :1], lambda x: x.double()]
)
def test_changed_shapes_and_dtypes_are_refused(change) -> None:
    cache = fill(KVCache(4), [1])
    k, v = positions_as_keys_and_values(1)
    with pytest.raises(UsageError, match=r"made for \[B, heads, T, width\] = \[2, 1, 'T', 3\] torch.float32, got"):
        cache.append(change(k), v)


def test_append_returns_a_new_state_with_the_same_buffers() -> None:
    old = fill(KVCache(4), [1])
    new = old.append(*positions_as_keys_and_values(1))
    assert (old.length, new.length) == (1, 2)
    assert old.keys is new.keys


@pytest.mark.parametrize("cache", [KVCache(6), RollingCache(6, max_len=9)])
def test_preallocate_allocates_the_bytes_of_the_first_step(cache) -> None:
    cpu = torch.device("cpu")
    allocated = preallocate(cache, (2, 1, 3, 2), torch.float32, cpu)
    assert state_bytes(allocated) == state_bytes(fill(cache, [1])) == 2 * 6 * (3 + 2) * 4
    assert state_bytes(fill(allocated, [1, 5])) == state_bytes(allocated)
    assert preallocate(cache, (2, None, 3, 2), torch.float32, cpu) is cache


class TestBytes:
    def test_counts_shared_and_nested_storages_once(self) -> None:
        x = torch.zeros(10)

        @dataclass
        class Holder:
            a: Tensor
            b: object

        assert state_bytes(Holder(x, {"view": x[2:], "list": [x, (torch.zeros(3, dtype=torch.int8),)]})) == 43

    def test_counts_the_whole_storage_of_a_view(self) -> None:
        assert state_bytes(torch.zeros(100)[:1]) == 400

    @pytest.mark.parametrize("empty", [None, 3, "text", KVCache(5), [], {}])
    def test_objects_without_tensors_have_zero_bytes(self, empty: object) -> None:
        assert state_bytes(empty) == 0


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


def test_select_state_rows_copies_rows_of_all_tensors() -> None:
    folded = torch.arange(6.0).view(6, 1)  # two rows of the batch with three heads each
    state = {"cache": fill(KVCache(4), [3]), "sums": (Pair(folded, None), [folded + 1]), "length": 3}
    selected = select_state_rows(state, 2, [1, 1, 0])
    assert selected["sums"][0].left[:, 0].tolist() == [3, 4, 5, 3, 4, 5, 0, 1, 2]
    assert (selected["sums"][0].right, selected["length"], selected["cache"].length) == (None, 3, 3)
    assert selected["sums"][1][0].shape == (9, 1)
    assert selected["cache"].keys.shape == (3, 1, 4, 3)
    selected["cache"].append(*(x[:1, :, :1].expand(3, -1, -1, -1) for x in positions_as_keys_and_values(1)))
    assert torch.equal(state["cache"].keys, fill(KVCache(4), [3]).keys)


def test_select_state_rows_refuses_unknown_types() -> None:
    with pytest.raises(UnsupportedError, match="a set in it"):
        select_state_rows((torch.zeros(1), {1, 2}), 1, [0])
