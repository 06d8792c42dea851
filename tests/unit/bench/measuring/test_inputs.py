"""Inputs that change before every pass: contents do, and nothing else that a mechanism could go by."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_suites
import torch
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.bench.measuring.inputs import CACHE_LINE_BYTES, ChangingInputs, RowPool, list_tensors, make_inputs
from efficient_attn.bench.measuring.workload import Workload


def _feed(variant: str = "full", **axes: Any) -> ChangingInputs:
    w = Workload(tiny_suites.case(variant, **axes))
    return make_inputs(w.case, w.attn, w.shape, w.sample, seed=0)


@given(
    rows=st.integers(1, 40), length=st.integers(1, 60), sets=st.integers(1, 9), width=st.integers(1, 20),
    by=st.integers(0, 100), inner=st.integers(0, 100),
)  # fmt: skip
def test_a_pool_holds_drawn_rows_from_two_of_them_on(
    rows: int, length: int, sets: int, width: int, by: int, inner: int
) -> None:
    drawn = torch.arange(rows * width, dtype=torch.float32).view(1, 1, rows, width)
    pool = RowPool(drawn, length, sets)
    cut = length // 3
    pool.write(by, inner, cut)
    for x in pool.tensors:
        assert x.shape == (1, 1, length, width)
        assert x.is_contiguous()
        assert (x.data_ptr() - pool.tensors[0].data_ptr()) % CACHE_LINE_BYTES == 0
    places = torch.arange(len(pool.memory))
    assert torch.equal(pool.memory, drawn[0, 0, torch.where(places < cut, by + places, inner + places) % rows])
    assert pool.is_intact()
    pool.memory.data[-1, -1] += 1
    assert not pool.is_intact()


@pytest.mark.parametrize("variant", ["full", "mqa", "random_feature:gated=true", "mla:latent_dim=16"])
def test_only_the_contents_change(variant: str) -> None:
    found = _feed(variant, seq_len=300)
    memory = {name: found.pools[key].memory for name, key in found.names.items()}
    first = found.change(4)
    about = [(x.data_ptr(), x.shape, x.stride(), x._version) for x in found.pools[found.names["q"]].tensors]
    before = [x.clone() for x in list_tensors(first[0])]
    versions = [x._version for x in list_tensors(first[0])]
    found.change(4)
    assert [x._version for x in list_tensors(first[0])] == versions
    assert not any(torch.equal(a, b) for a, b in zip(before, list_tensors(first[0]), strict=True))
    assert [(x.data_ptr(), x.shape, x.stride(), x._version) for x in found.pools[found.names["q"]].tensors] == about
    assert all(found.pools[key].memory is memory[name] for name, key in found.names.items())


def test_what_is_one_tensor_stays_one() -> None:
    (sample,) = _feed("reformer", seq_len=32).change(1)
    assert sample.q is sample.k
    assert sample.v is not sample.k


def test_calls_get_sets_in_drawn_order_and_each_its_own() -> None:
    found = _feed(seq_len=8)
    orders = [[s.q.data_ptr() for s in found.change(30)] for _ in range(2)]
    assert orders[0] != orders[1]
    assert set(orders[0]) == set(orders[1])
    assert all(len(set(order)) == 30 for order in orders)
    assert len({x.numpy().tobytes() for x in (s.v for s in found.change(30)) if x is not None}) == 30


def test_corners_come_back_and_the_rest_does_not() -> None:
    """So that who remembers by a corner gives what is wrong, and who remembers by all contents remembers in vain."""
    found = _feed(seq_len=64)
    corners, contents = set(), set()
    for _ in range(60):
        (sample,) = found.change(1)
        corners.add(sample.k[0, 0, 0].numpy().tobytes())
        contents.add(sample.k.numpy().tobytes())
    assert len(corners) <= 2 * 3
    assert len(contents) > 50


def test_the_same_seed_gives_the_same_contents() -> None:
    one, other = (_feed(seq_len=64).change(5) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(list_tensors(a), list_tensors(b), strict=True))


def test_writing_is_seen_whatever_the_version_says() -> None:
    found = _feed(seq_len=64)
    (sample,) = found.change(1)
    assert found.find_modified() is None
    sample.k.numpy()[0, 0, 0, 0] += 1
    assert found.find_modified() == "k"
    found.change(1)
    assert found.find_modified() is None


def test_an_inputs_memory_is_known() -> None:
    found = _feed(seq_len=64)
    (sample,) = found.change(1)
    assert found.find_owner(sample.k[:, :, 3:]) == "k"
    assert found.find_owner(sample.k.clone()) is None
