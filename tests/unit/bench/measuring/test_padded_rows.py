"""Batches that are not full: their lengths, their masks, and the same gate for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import tiny_suites
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.case import Case
from efficient_attn.bench.case_config import CaseConfig
from efficient_attn.bench.measuring.output_comparison import InvalidResult
from efficient_attn.bench.measuring.padded_rows import make_mask, select_rows
from efficient_attn.bench.measuring.preparation import prepare_case
from efficient_attn.bench.measuring.samples import verify_workload
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.bench.planning.cost_estimate import estimate_call
from efficient_attn.instruments.roofline import Roofline

PADDED = ("half", "drawn")
FILLS = (*PADDED, "packed")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def _case(fill: str, variant: str = "full", mode: str = "forward", **axes: Any) -> Case:
    return tiny_suites.case(variant, mode, **{"fill": fill, "batch": 3, "seq_len": 40} | axes)


def _lengths(**known: Any) -> tuple[int, ...]:
    return CaseConfig(max_len=1000, **{"seq_len": 1000, "batch": 8} | known).row_lengths(0)


# -- lengths -------------------------------------------------------------------------------------------------------


def test_full_and_half_rows_are_of_one_length() -> None:
    assert _lengths() == (1000,) * 8
    assert _lengths(fill="half", seq_len=7) == (4,) * 8


def test_drawn_lengths_are_spread_between_a_quarter_and_all() -> None:
    found = sorted(_lengths(fill="drawn"))
    assert all(250 + 93 * i <= n <= 250 + 94 * (i + 1) for i, n in enumerate(found))
    assert _lengths(fill="drawn", seq_len=1, batch=2) == (1, 1)


def test_drawn_and_packed_rows_are_the_same_rows() -> None:
    assert _lengths(fill="drawn") == _lengths(fill="packed")


def test_lengths_follow_the_seed_and_the_sizes() -> None:
    place = CaseConfig(seq_len=1000, max_len=1000, batch=8, fill="drawn")
    assert place.row_lengths(0) == place.row_lengths(0) != place.row_lengths(1)
    assert place.row_lengths(0) != replace(place, batch=9).row_lengths(0)[:8]


# -- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", PADDED)
def test_padding_ends_keys_and_queries(fill: str) -> None:
    case = _case(fill, causal=True)
    mask = Workload(case).mask
    assert mask.causal
    for lengths in (mask.key_lengths, mask.query_lengths):
        assert lengths is not None
        assert tuple(lengths.tolist()) == case.row_lengths


def test_packed_rows_are_one_batch_without_padding() -> None:
    case = _case("packed")
    w, total = Workload(case), sum(case.row_lengths)
    assert w.sample.q.shape == (1, 2, total, 8)
    assert w.mask.cu_seqlens is not None
    assert w.mask.cu_seqlens.diff().tolist() == list(case.row_lengths)
    assert case.group.config.batch == 3  # the row says how many sequences there are


@pytest.mark.parametrize("fill", FILLS)
def test_a_shorter_call_is_padded_in_proportion(fill: str) -> None:
    case = _case(fill)
    small = replace(case.shape, n=case.shape.n // 2, m=case.shape.n // 2)
    mask = make_mask(case, small)
    mask.check(small.batch, small.n, small.m, torch.device("cpu"))
    found = mask.cu_seqlens.diff() if mask.cu_seqlens is not None else mask.key_lengths
    assert found is not None
    assert all(abs(n - length / 2) <= 1 for n, length in zip(found.tolist(), case.row_lengths, strict=True))


@pytest.mark.parametrize("fill", ["full", *FILLS])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("place", [slice(0, 5), slice(12, 31), slice(37, 40)])
def test_rows_taken_alone_are_those_of_the_whole(fill: str, causal: bool, place: slice) -> None:
    w = Workload(_case(fill, causal=causal, dtype="float64"))
    rows = select_rows(w.sample, w.mask, place, w.attn.traits.inputs)
    assert rows.rows.start == place.start
    with torch.no_grad():
        alone = ea.create("full:backend=dense")(*rows.sample[:3], rows.mask)
    torch.testing.assert_close(alone, w.forward(w.sample)[:, :, rows.rows])


# -- the gate ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=3", "nystromformer:n_landmarks=4"])
def test_what_is_right_passes(variant: str, mode: str, fill: str) -> None:
    assert 0 <= verify_workload(Workload(_case(fill, variant, mode)))[0] < 1e-4


class _Deaf(ea.SoftmaxAttention):
    """Exact attention that does not hear of padding or packing."""

    def forward(self, q: Tensor, k: Tensor, v: Any, mask: ea.Mask | None = None, **inputs: Tensor) -> Tensor:
        deaf = mask if self.backend == "dense" else ea.Mask(causal=mask is not None and mask.causal)
        return super().forward(q, k, v, deaf, **inputs)


@pytest.mark.parametrize("fill", FILLS)
def test_a_mechanism_that_ignores_the_rows_ends_is_invalid(fill: str) -> None:
    ea.register("zz_deaf", family="full")(_Deaf)
    assert verify_workload(Workload(_case("full", "zz_deaf")))[0] < 1e-5
    with pytest.raises(InvalidResult, match="differs from the reference"):
        verify_workload(Workload(_case(fill, "zz_deaf")))[0]


def test_a_mechanism_without_padding_says_so() -> None:
    name = tiny_suites.register_modified("zz_unpadded", traits=ea.Traits(padding=False))
    with pytest.raises(ea.UnsupportedError, match="padding"):
        verify_workload(Workload(_case("half", name)))[0]
    assert verify_workload(Workload(_case("packed", name)))[0] < 1e-5  # there is none


# -- what is counted -----------------------------------------------------------------------------------------------


def test_padding_need_not_be_read() -> None:
    full, half = Workload(_case("full")), Workload(_case("half"))
    assert half.bytes_moved * 2 == full.bytes_moved
    drawn, packed = Workload(_case("drawn")), Workload(_case("packed"))
    assert drawn.bytes_moved == packed.bytes_moved


def test_what_a_call_is_expected_to_cost_follows_how_full_it_is() -> None:
    best = Roofline(1e11, 1e15)  # so that operations decide
    cost = {fill: estimate_call(_case(fill, seq_len=4096, batch=4), best).call_s for fill in ("full", *FILLS)}
    assert cost["half"] == cost["drawn"] == cost["full"]  # padding may be computed like the rest
    lengths = _case("packed", seq_len=4096, batch=4).row_lengths
    share = sum(n * n for n in lengths) / (4 * 4096**2)
    assert cost["packed"] == pytest.approx(share * cost["full"], rel=0.05)


@pytest.mark.parametrize("fill", ["full", *FILLS])
def test_work_is_that_of_what_is_no_padding(fill: str) -> None:
    case = _case(fill)
    found = prepare_case(case, case.row(), lambda *_: None).row
    assert found.fill == fill
    assert found.flops == sum(n * n for n in case.row_lengths) * 2 * (8 + 8) * 2
    assert found.pairs == 40 * 40
