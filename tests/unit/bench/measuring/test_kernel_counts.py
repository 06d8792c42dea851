"""Kernels of attention are a column, counted again in process runs, and cases whose kernels change are invalid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tiny_suites
import torch
from inline_measurement import measure_variants

from efficient_attn.bench.measuring import kernel_counts, round_job
from efficient_attn.bench.measuring.kernel_counts import KernelCounts
from efficient_attn.instruments.timing import RoundPlan, SampleCost
from efficient_attn.results.rows import Record

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MODES = ("forward", "forward_backward", "prefill", "decode")


@pytest.fixture(autouse=True)
def _isolated_state() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield
    torch.backends.cuda.enable_flash_sdp(True)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, list[str]]]:
    """The kernels that each process run of this test reports."""
    reports: list[dict[int, list[str]]] = []
    original = round_job.ProcessRunEnd

    def make_end(*given: Any) -> Any:
        reports.append(dict(given[-1]))
        return original(*given)

    monkeypatch.setattr(round_job, "ProcessRunEnd", make_end)
    monkeypatch.setattr(kernel_counts, "MAX_SHARE", 100.0)
    return reports


@pytest.mark.parametrize("mode", MODES)
def test_rows_have_the_kernels_and_process_runs_the_same(mode: str, counted: list[dict[int, list[str]]]) -> None:
    records = measure_variants("full", "linear", "sliding_window:window=4", mode=mode)
    assert [record.row.status for record in records] == ["ok"] * 3
    assert FLASH in (records[0].row.kernels or "")
    assert "attention" not in (records[1].row.kernels or "")
    assert len(counted) == 2
    for report in counted:
        assert report.keys() == {0, 1, 2}
        for index, record in enumerate(records):
            expected = [name for name in (record.row.kernels or "").split() if "attention" in name]
            assert report[index] == sorted(expected)


def _measure_without_flash(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Measure exact and linear attention; process runs begin with the flash kernel turned off."""
    original = round_job.set_threads

    def set_threads(group: Any) -> int:
        torch.backends.cuda.enable_flash_sdp(False)
        return original(group)

    monkeypatch.setattr(round_job, "set_threads", set_threads)
    return measure_variants("full", "linear", "mqa", "sliding_window:window=4")


def test_a_baseline_whose_kernels_change_is_invalid_and_gives_no_speedups(
    monkeypatch: pytest.MonkeyPatch, counted: list[dict[int, list[str]]]
) -> None:
    full, linear, mqa, window = _measure_without_flash(monkeypatch)
    for record in (full, mqa):
        assert (record.row.status, record.row.latency_ms, record.row.speedup) == ("invalid", None, None)
        start = "its kernels changed: in process run 1 it ran aten::_scaled_dot_product_attention_math"
        assert (record.row.reason or "").startswith(start)
        assert f"in preparation {FLASH}" in (record.row.reason or "")
    assert [(r.row.status, r.row.speedup) for r in (linear, window)] == [("ok", None)] * 2
    assert counted


def test_a_warm_up_is_traced_if_another_call_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, counted: list[dict[int, list[str]]]
) -> None:
    monkeypatch.setattr(kernel_counts, "MAX_SHARE", 0.0)
    full, linear = measure_variants("full", "linear")
    assert (full.row.status, linear.row.status) == ("ok", "ok")
    assert [sorted(report) for report in counted] == [[0, 1]] * 2
    assert counted[0] == {0: sorted((full.row.kernels or "").split()), 1: []}
    assert _measure_without_flash(monkeypatch)[0].row.status == "invalid"


def test_a_call_that_fails_when_it_is_traced_fails_its_case(
    monkeypatch: pytest.MonkeyPatch, counted: list[dict[int, list[str]]]
) -> None:
    def fail(*given: Any) -> list[str]:
        raise RuntimeError("on one more call")

    monkeypatch.setattr(kernel_counts, "_count_call", fail)
    (full,) = measure_variants("full")
    assert (full.row.status, full.row.reason) == ("error", "RuntimeError: on one more call")


def test_the_baseline_is_traced_first_within_the_share() -> None:
    cases = [tiny_suites.case("linear"), tiny_suites.case("full"), tiny_suites.case("mqa")]
    plans = [RoundPlan(SampleCost(1, seconds), 10) for seconds in (0.1, 0.2, 5.0)]
    counts = KernelCounts(cases, plans, [4, 4, 4])
    assert counts._after_rounds == [1, 0]
    assert counts._in_warm_up == set()  # a call of five seconds has none
    counts = KernelCounts(cases, [*plans[:2], RoundPlan(SampleCost(1, 0.9), 1)], [1, 1, 1])
    assert counts._after_rounds == []
    assert counts._in_warm_up == {0, 1, 2}


def test_kernels_of_attention_are_selected() -> None:
    trace = kernel_counts.KernelTrace()
    q = torch.ones(1, 2, 8, 4)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    q @ q.mT
    assert trace.stop() == [FLASH, "aten::scaled_dot_product_attention"]
    assert kernel_counts.select_attention(["mkldnn::_linear_pointwise", FLASH]) == [FLASH]
