"""Inputs that change before every sample: contents change; addresses, strides and versions do not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import tiny_suites
import torch
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn.bench.measuring.inputs import CACHE_LINE_BYTES, ChangingInputs, RowPool, list_tensors, make_inputs
from efficient_attn.bench.measuring.workload import Workload


def _make_inputs(variant: str = "full", **axes: Any) -> ChangingInputs:
    w = Workload(tiny_suites.case(variant, **axes))
    return make_inputs(w.case, w.attn, w.shape, w.sample, seed=0)


@given(
    rows=st.integers(1, 40), length=st.integers(1, 60), sets=st.integers(1, 9), width=st.integers(1, 20),
    by=st.integers(0, 100), inner=st.integers(0, 100),
)  # fmt: skip
def test_a_pool_is_filled_with_drawn_rows(rows: int, length: int, sets: int, width: int, by: int, inner: int) -> None:
    drawn = torch.arange(rows * width, dtype=torch.float32).view(1, 1, rows, width)
    pool = RowPool(drawn, length, sets)
    cut = length // 3
    pool.write(by, inner, cut)
    for x in pool.tensors:
        assert x.shape == (1, 1, length, width)
        assert x.is_contiguous()
        assert (x.data_ptr() - pool.tensors[0].data_ptr()) % CACHE_LINE_BYTES == 0
    positions = torch.arange(len(pool.memory))
    assert torch.equal(pool.memory, drawn[0, 0, torch.where(positions < cut, by + positions, inner + positions) % rows])
    assert pool.is_intact()
    pool.memory.data[-1, -1] += 1
    assert not pool.is_intact()


@pytest.mark.parametrize("width", [1, 8, 20])
@pytest.mark.parametrize("length", [1, 17, 40])
def test_separate_tensors_of_a_pool_share_no_memory(length: int, width: int) -> None:
    drawn = torch.rand(1, 2, 40, width)
    tensors = RowPool(drawn, length, 5, separate=True).tensors
    assert all(a.data_ptr() + a.nbytes <= b.data_ptr() for a, b in pairwise(tensors))
    assert all((x.data_ptr() - tensors[0].data_ptr()) % CACHE_LINE_BYTES == 0 for x in tensors)
    assert len({x.numpy().tobytes() for x in tensors}) == 5


@pytest.mark.parametrize("variant", ["full", "reformer", "random_feature:gated=true"])
@pytest.mark.parametrize(("least", "separate"), [(10**5, True), (10, False)])
def test_inputs_in_separate_memory_exceed_a_size(variant: str, least: int, separate: bool) -> None:
    w = Workload(tiny_suites.case(variant, seq_len=31, dtype="bfloat16"))
    inputs = make_inputs(w.case, w.attn, w.shape, w.sample, seed=0, separate_bytes=least)
    samples = inputs.change(10**6)
    assert sum({x.data_ptr(): x.nbytes for s in samples for x in list_tensors(s)}.values()) > least
    first, second = sorted(sample.q.data_ptr() for sample in samples)[:2]
    assert (second - first >= samples[0].q.nbytes) is separate  # larger inputs evict themselves


@pytest.mark.parametrize("variant", ["full", "mqa", "random_feature:gated=true", "mla:latent_dim=16"])
def test_only_the_contents_of_inputs_change(variant: str) -> None:
    inputs = _make_inputs(variant, seq_len=300)
    memory = {name: inputs.pools[key].memory for name, key in inputs.names.items()}
    first = inputs.change(4)
    layout = [(x.data_ptr(), x.shape, x.stride(), x._version) for x in inputs.pools[inputs.names["q"]].tensors]
    before = [x.clone() for x in list_tensors(first[0])]
    versions = [x._version for x in list_tensors(first[0])]
    inputs.change(4)
    assert [x._version for x in list_tensors(first[0])] == versions
    assert not any(torch.equal(a, b) for a, b in zip(before, list_tensors(first[0]), strict=True))
    assert [(x.data_ptr(), x.shape, x.stride(), x._version) for x in inputs.pools[inputs.names["q"]].tensors] == layout
    assert all(inputs.pools[key].memory is memory[name] for name, key in inputs.names.items())


def test_a_tensor_used_as_two_inputs_stays_shared() -> None:
    (sample,) = _make_inputs("reformer", seq_len=32).change(1)
    assert sample.q is sample.k
    assert sample.v is not sample.k


def test_calls_have_distinct_inputs_in_random_order() -> None:
    inputs = _make_inputs(seq_len=8)
    orders = [[s.q.data_ptr() for s in inputs.change(30)] for _ in range(2)]
    assert orders[0] != orders[1]
    assert set(orders[0]) == set(orders[1])
    assert all(len(set(order)) == 30 for order in orders)
    assert len({x.numpy().tobytes() for x in (s.v for s in inputs.change(30)) if x is not None}) == 30


def test_corners_repeat_but_contents_do_not() -> None:
    """A mechanism that caches results by a corner is then wrong, and one that caches by all contents gains nothing."""
    inputs = _make_inputs(seq_len=64)
    corners, contents = set(), set()
    for _ in range(60):
        (sample,) = inputs.change(1)
        corners.add(sample.k[0, 0, 0].numpy().tobytes())
        contents.add(sample.k.numpy().tobytes())
    assert len(corners) <= 2 * 3
    assert len(contents) > 50


def test_the_same_seed_gives_the_same_contents() -> None:
    first, second = (_make_inputs(seq_len=64).change(5) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(list_tensors(a), list_tensors(b), strict=True))


def test_writes_are_detected_even_without_a_new_version() -> None:
    inputs = _make_inputs(seq_len=64)
    (sample,) = inputs.change(1)
    assert inputs.find_modified() is None
    sample.k.numpy()[0, 0, 0, 0] += 1
    assert inputs.find_modified() == "k"
    inputs.change(1)
    assert inputs.find_modified() is None


def test_the_owner_of_memory_is_found() -> None:
    inputs = _make_inputs(seq_len=64)
    (sample,) = inputs.change(1)
    assert inputs.find_owner(sample.k[:, :, 3:]) == "k"
    assert inputs.find_owner(sample.k.clone()) is None
