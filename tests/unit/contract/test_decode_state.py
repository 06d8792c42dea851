"""Decode states: what they keep, where, and in how many bytes."""

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


def stream(length: int, *, heads: int = 1) -> tuple[Tensor, Tensor]:
    """Keys and values that hold their own position."""
    p = torch.arange(length, dtype=torch.float32).view(1, 1, -1, 1).expand(2, heads, -1, -1)
    return p.repeat(1, 1, 1, 3), p.repeat(1, 1, 1, 2) + 0.5


def fed(cache, split: list[int]):
    k, v = stream(sum(split))
    at = 0
    for t in split:
        cache = cache.append(k[:, :, at : at + t], v[:, :, at : at + t])
        at += t
    return cache


splits = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(splits, st.integers(0, 12), st.integers(0, 6))
def test_ring_keeps_the_first_and_last_positions_in_their_slots(split: list[int], capacity: int, prefix: int) -> None:
    total = sum(split)
    cache = fed(RollingCache(capacity, total, prefix), split)
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
def test_cache_keeps_everything_in_order(split: list[int]) -> None:
    total = sum(split)
    cache = fed(KVCache(total + 3), split)
    k, v = stream(total)
    keys, values = cache.filled()
    assert torch.equal(keys, k)
    assert torch.equal(values, v)


@pytest.mark.parametrize("cache", [KVCache(4), RollingCache(2, 4), RollingCache(4, 4)])
def test_one_position_too_many_is_refused(cache) -> None:
    full = fed(cache, [3, 1])
    k, v = stream(1)
    with pytest.raises(UsageError, match="made for max_len=4 positions, 5 are needed"):
        full.append(k, v)
    with pytest.raises(UsageError, match="5 are needed"):
        fed(cache, [5])


@pytest.mark.parametrize(
    "wrong", [lambda x: x[:1], lambda x: x.repeat(1, 2, 1, 1), lambda x: x[..., :1], lambda x: x.double()]
)
def test_other_shapes_than_the_first_are_refused(wrong) -> None:
    cache = fed(KVCache(4), [1])
    k, v = stream(1)
    with pytest.raises(UsageError, match=r"made for \[B, heads, T, width\] = \[2, 1, 'T', 3\] torch.float32, got"):
        cache.append(wrong(k), v)


def test_appending_returns_a_new_state_over_the_same_buffers() -> None:
    one = fed(KVCache(4), [1])
    two = one.append(*stream(1))
    assert (one.length, two.length) == (1, 2)
    assert one.keys is two.keys


@pytest.mark.parametrize("cache", [KVCache(6), RollingCache(6, 9)])
def test_preallocation_gives_the_bytes_that_the_first_step_would(cache) -> None:
    cpu = torch.device("cpu")
    ready = preallocate(cache, (2, 1, 3, 2), torch.float32, cpu)
    assert state_bytes(ready) == state_bytes(fed(cache, [1])) == 2 * 6 * (3 + 2) * 4
    assert state_bytes(fed(ready, [1, 5])) == state_bytes(ready)
    assert preallocate(cache, (2, None, 3, 2), torch.float32, cpu) is cache


class TestBytes:
    def test_counts_each_storage_once_however_deep(self) -> None:
        x = torch.zeros(10)

        @dataclass
        class Holder:
            a: Tensor
            b: object

        assert state_bytes(Holder(x, {"view": x[2:], "list": [x, (torch.zeros(3, dtype=torch.int8),)]})) == 43

    def test_counts_whole_storages_behind_views(self) -> None:
        assert state_bytes(torch.zeros(100)[:1]) == 400

    @pytest.mark.parametrize("empty", [None, 3, "text", KVCache(5), [], {}])
    def test_nothing_is_nothing(self, empty: object) -> None:
        assert state_bytes(empty) == 0


class Pair(NamedTuple):
    left: Tensor
    right: Tensor | None


def test_rows_are_taken_from_every_tensor_of_a_state() -> None:
    folded = torch.arange(6.0).view(6, 1)  # two rows of the batch with three heads each
    state = {"cache": fed(KVCache(4), [3]), "sums": (Pair(folded, None), [folded + 1]), "length": 3}
    taken = select_state_rows(state, 2, [1, 1, 0])
    assert taken["sums"][0].left[:, 0].tolist() == [3, 4, 5, 3, 4, 5, 0, 1, 2]
    assert (taken["sums"][0].right, taken["length"], taken["cache"].length) == (None, 3, 3)
    assert taken["sums"][1][0].shape == (9, 1)
    assert taken["cache"].keys.shape == (3, 1, 4, 3)
    taken["cache"].append(*(x[:1, :, :1].expand(3, -1, -1, -1) for x in stream(1)))
    assert torch.equal(state["cache"].keys, fed(KVCache(4), [3]).keys)


def test_a_state_with_unknown_things_in_it_is_not_copied() -> None:
    with pytest.raises(UnsupportedError, match="a set in it"):
        select_state_rows((torch.zeros(1), {1, 2}), 1, [0])
