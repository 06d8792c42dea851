"""Padded and packed batches: lengths, masks, verification and counted work."""

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
from efficient_attn.bench.measuring.padded_rows import make_mask, select_rows, split_queries
from efficient_attn.bench.measuring.preparation import prepare_case
from efficient_attn.bench.measuring.row_errors import InvalidResult
from efficient_attn.bench.measuring.samples import verify_workload
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.bench.planning.cost_estimate import estimate_call
from efficient_attn.instruments.roofline import Roofline

PADDED = ("half", "drawn")
FILLS = (*PADDED, "packed")


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def _case(fill: str, variant: str = "full", mode: str = "forward", **axes: Any) -> Case:
    return tiny_suites.case(variant, mode, **{"fill": fill, "batch": 3, "seq_len": 40} | axes)


def _lengths(**known: Any) -> tuple[int, ...]:
    return CaseConfig(max_len=1000, **{"seq_len": 1000, "batch": 8} | known).row_lengths(0)


# -- lengths -------------------------------------------------------------------------------------------------------


def test_full_and_half_rows_have_one_length() -> None:
    assert _lengths() == (1000,) * 8
    assert _lengths(fill="half", seq_len=7) == (4,) * 8


def test_drawn_lengths_range_from_a_quarter_to_the_full_length() -> None:
    lengths = sorted(_lengths(fill="drawn"))
    assert all(250 + 93 * i <= n <= 250 + 94 * (i + 1) for i, n in enumerate(lengths))
    assert _lengths(fill="drawn", seq_len=1, batch=2) == (1, 1)


def test_drawn_and_packed_rows_have_the_same_lengths() -> None:
    assert _lengths(fill="drawn") == _lengths(fill="packed")


def test_lengths_depend_on_seed_and_batch_size() -> None:
    config = CaseConfig(seq_len=1000, max_len=1000, batch=8, fill="drawn")
    assert config.row_lengths(0) == config.row_lengths(0) != config.row_lengths(1)
    assert config.row_lengths(0) != replace(config, batch=9).row_lengths(0)[:8]


# -- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", PADDED)
def test_masks_have_the_lengths_of_keys_and_queries(fill: str) -> None:
    case = _case(fill, causal=True)
    mask = Workload(case).mask
    assert mask.causal
    for lengths in (mask.key_lengths, mask.query_lengths):
        assert lengths is not None
        assert tuple(lengths.tolist()) == case.row_lengths


def test_packed_rows_are_concatenated_without_padding() -> None:
    case = _case("packed")
    w, total = Workload(case), sum(case.row_lengths)
    assert w.sample.q.shape == (1, 2, total, 8)
    assert w.mask.cu_seqlens is not None
    assert w.mask.cu_seqlens.diff().tolist() == list(case.row_lengths)
    assert case.group.config.batch == 3  # the number of sequences


@pytest.mark.parametrize("fill", FILLS)
def test_shorter_calls_are_padded_proportionally(fill: str) -> None:
    case = _case(fill)
    small = replace(case.shape, n=case.shape.n // 2, m=case.shape.n // 2)
    mask = make_mask(case, small)
    mask.check(small.batch, small.n, small.m, torch.device("cpu"))
    lengths = mask.cu_seqlens.diff() if mask.cu_seqlens is not None else mask.key_lengths
    assert lengths is not None
    assert all(abs(n - length / 2) <= 1 for n, length in zip(lengths.tolist(), case.row_lengths, strict=True))


@pytest.mark.parametrize("fill", ["full", *FILLS])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [[0], [0, 5, 12, 13, 30, 39], [7, 8, 38]])
@pytest.mark.parametrize(
    ("variant", "axes"),
    [("full", {}), ("linear", {}), ("cosformer", {}), ("mqa", {}), ("strided:stride=5", {}), ("performer", {}),
     ("retention", {"causal": True}), ("luong_local:window=4", {}), ("random_blocks:block_size=8", {})],
)  # fmt: skip
def test_selected_rows_equal_those_of_the_whole_output(
    fill: str, causal: bool, variant: str, axes: dict[str, Any], rows: list[int]
) -> None:
    w = Workload(_case(fill, variant, dtype="float64", **{"causal": causal} | axes))
    parts = select_rows(w.sample, w.mask, torch.tensor(rows), w.attn.traits.inputs)
    assert [row for part in parts for row in part.rows.tolist()] == rows
    assert len(parts) == 1 or fill == "packed"
    assert w.reference_supports_positions
    for part in parts:
        with torch.no_grad():
            alone = w.oracle(*part.sample[:3], part.mask)
        torch.testing.assert_close(alone, w.forward(w.sample)[:, :, part.rows])


@pytest.mark.parametrize("fill", ["full", *FILLS])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cut", [1, 13, 39])
def test_queries_are_split_with_all_keys(fill: str, causal: bool, cut: int) -> None:
    if fill == "packed":
        pytest.skip("packed sequences are not split")
    w = Workload(_case(fill, dtype="float64", causal=causal))
    parts = split_queries(w.sample, w.mask, cut, w.attn.traits.inputs)
    with torch.no_grad():
        outputs = [w.attn(*sample[:3], mask) for _, sample, mask in parts]
    assert [rows for rows, _, _ in parts] == [slice(0, cut), slice(cut, 40)]
    assert [out.shape[2] for out in outputs] == [cut, 40 - cut]
    torch.testing.assert_close(torch.cat(outputs, 2), w.forward(w.sample))


# -- verification --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("mode", ["forward", "forward_backward"])
@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=3", "nystromformer:n_landmarks=4"])
def test_correct_mechanisms_pass_verification(variant: str, mode: str, fill: str) -> None:
    assert 0 <= verify_workload(Workload(_case(fill, variant, mode)))[0] < 1e-4


class _IgnoresLengths(ea.SoftmaxAttention):
    """Exact attention that ignores padding and packing."""

    def forward(self, q: Tensor, k: Tensor, v: Any, mask: ea.Mask | None = None, **inputs: Tensor) -> Tensor:
        used = mask if self.backend == "dense" else ea.Mask(causal=mask is not None and mask.causal)
        return super().forward(q, k, v, used, **inputs)


@pytest.mark.parametrize("fill", FILLS)
def test_a_mechanism_that_ignores_row_lengths_is_invalid(fill: str) -> None:
    ea.register("zz_ignores_lengths", family="full")(_IgnoresLengths)
    assert verify_workload(Workload(_case("full", "zz_ignores_lengths")))[0] < 1e-5
    with pytest.raises(InvalidResult, match="differs from the reference"):
        verify_workload(Workload(_case(fill, "zz_ignores_lengths")))[0]


def test_padding_is_unsupported_without_the_trait() -> None:
    name = tiny_suites.register_modified("zz_unpadded", traits=ea.Traits(padding=False))
    with pytest.raises(ea.UnsupportedError, match="padding"):
        verify_workload(Workload(_case("half", name)))[0]
    assert verify_workload(Workload(_case("packed", name)))[0] < 1e-5  # packed rows have no padding


# -- counted work --------------------------------------------------------------------------------------------------


def test_padding_does_not_count_as_bytes_moved() -> None:
    full, half = Workload(_case("full")), Workload(_case("half"))
    assert half.bytes_moved * 2 == full.bytes_moved
    drawn, packed = Workload(_case("drawn")), Workload(_case("packed"))
    assert drawn.bytes_moved == packed.bytes_moved


def test_estimated_cost_excludes_padding_of_packed_rows_only() -> None:
    best = Roofline(1e11, 1e15)  # so that arithmetic takes all of the time
    cost = {fill: estimate_call(_case(fill, seq_len=4096, batch=4), best).call_s for fill in ("full", *FILLS)}
    assert cost["half"] == cost["drawn"] == cost["full"]  # padding may be computed
    lengths = _case("packed", seq_len=4096, batch=4).row_lengths
    share = sum(n * n for n in lengths) / (4 * 4096**2)
    assert cost["packed"] == pytest.approx(share * cost["full"], rel=0.05)


@pytest.mark.parametrize("fill", ["full", *FILLS])
def test_flops_exclude_padding(fill: str) -> None:
    case = _case(fill)
    row = prepare_case(case, case.row(), lambda *_: None).row
    assert row.fill == fill
    assert row.flops == sum(n * n for n in case.row_lengths) * 2 * (8 + 8) * 2
    assert row.pairs == 40 * 40
