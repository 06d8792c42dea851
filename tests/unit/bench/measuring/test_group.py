"""Measurement of a group: one record for each case, and paired speedups of the successful ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tiny_suites
import torch
from inline_measurement import measure_cases, measure_variants

import efficient_attn as ea
from efficient_attn.bench.case import Case
from efficient_attn.bench.measuring import jobs, plausibility, preparation, process_runs
from efficient_attn.bench.measuring.conditions import Conditions
from efficient_attn.bench.measuring.group import measure_group
from efficient_attn.contract.decode_state import KVCache
from efficient_attn.engines.local import LocalEngine
from efficient_attn.instruments.roofline import CacheLevel, Roofline
from efficient_attn.results.exchange import list_round_values
from efficient_attn.results.rows import Record, Row
from efficient_attn.results.stats import estimate_paired_ratio

MODES = ("forward", "forward_backward", "decode", "prefill")


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    threads = torch.get_num_threads()
    with tiny_suites.isolated_registry():
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("mode", MODES)
def test_successful_cases_have_complete_rows(mode: str) -> None:
    full, linear = measure_variants("full", "linear", mode=mode)
    for record in (full, linear):
        row = record.row
        assert (row.status, row.reason) == ("ok", None)
        assert row.stop_reason in ("rounds", "half_width")
        assert row.latency_ms is not None
        assert 0 < (row.latency_ms_low or 0) <= row.latency_ms <= (row.latency_ms_high or 0)
        assert row.oracle_error is not None
        assert row.oracle_error < 1e-5
        assert (row.threads, row.seed, row.parameters) == (1, 0, 0)
        assert (row.rounds, row.processes, row.cache) == (2, 2, "warm")
        assert record.samples["process"] == [0, 1]
        assert all(len(samples) >= 3 for samples in record.samples["latency_ms"])
        positions = 1 if mode == "decode" else 16
        assert row.tokens_per_s == pytest.approx(positions / row.latency_ms * 1e3)
        assert row.tflops_per_s == pytest.approx(row.flops / row.latency_ms / 1e9)
    assert (full.row.backend_used, linear.row.backend_used) == ("sdpa", "chunked")


def test_speedups_are_paired_with_the_baselines_rounds() -> None:
    linear, full, window = measure_variants("linear", "full", "sliding_window:window=2")
    assert (full.row.speedup, full.row.speedup_low, full.row.speedup_high) == (1, 1, 1)

    for other in (linear, window):
        speedup = (other.row.speedup, other.row.speedup_low, other.row.speedup_high)
        assert speedup == pytest.approx(estimate_paired_ratio(list_round_values(full), list_round_values(other)))


def _several_heads(order: Sequence[int]) -> list[Record]:
    text = tiny_suites.TINY.replace('"forward"', '"decode"').replace("heads = 2", "heads = 4")
    return measure_cases(tiny_suites.plan(text, variants=["full", "linear"], axes={"kv_heads": order}))


@pytest.mark.parametrize("order", [(1, 4, 2), (4, 2, 1)])
def test_the_baseline_has_the_most_key_value_heads(order: Sequence[int]) -> None:
    records = {(r.row.variant, r.row.kv_heads): r for r in _several_heads(order)}
    base = records.pop(("full", 4))
    assert (base.row.speedup, base.row.speedup_low, base.row.speedup_high) == (1, 1, 1)
    assert len(records) == 5
    for other in records.values():
        speedup = (other.row.speedup, other.row.speedup_low, other.row.speedup_high)
        assert speedup == pytest.approx(estimate_paired_ratio(list_round_values(base), list_round_values(other)))
        assert speedup != (1, 1, 1)


def test_a_failed_baseline_is_not_replaced_by_fewer_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_baseline(case: Case, row: Any, at: Any, **options: Any) -> Any:
        if case.is_baseline:
            raise MemoryError("too many heads")
        return original(case, row, at, **options)

    original = preparation.prepare_case
    monkeypatch.setattr(preparation, "prepare_case", fail_baseline)
    records = {(r.row.variant, r.row.kv_heads): r.row for r in _several_heads((4, 2))}
    assert records.pop(("full", 4)).status == "oom"
    assert {(row.status, row.speedup) for row in records.values()} == {("ok", None)}


def test_a_group_without_its_baseline_has_no_speedups() -> None:
    (linear,) = measure_variants("linear")
    assert linear.row.status == "ok"
    assert linear.row.speedup is None


def test_rows_have_pairs_flops_and_bytes() -> None:
    (forward,) = measure_variants("full", batch=3, causal=True)
    assert forward.row.pairs == 16 * 17 // 2
    assert forward.row.flops == 16 * 17 // 2 * 2 * (8 + 8) * 3 * 2
    assert forward.row.output_bytes == 3 * 2 * 16 * 8 * 4
    (both,) = measure_variants("full", batch=3, causal=True, mode="forward_backward")
    assert both.row.flops == forward.row.flops * 3.5
    (decode,) = measure_variants("full", batch=3, mode="decode")
    assert decode.row.pairs == 16
    assert decode.row.state_bytes == 2 * 3 * 2 * 16 * 8 * 4
    assert decode.row.steps == 1
    (window,) = measure_variants("sliding_window:window=2")
    assert window.row.pairs == 16 * 5 - 2 * 3
    assert (window.row.pairs_computed or 0) >= window.row.pairs


@pytest.mark.parametrize("mode", MODES)
def test_bandwidth_share_uses_the_rate_of_the_cache_that_fits(mode: str) -> None:
    (case,) = tiny_suites.plan(tiny_suites.TINY.replace('"forward"', f'"{mode}"'))
    conditions = Conditions(engine=LocalEngine("inline"))
    best = Roofline(gemm_flops_per_s=1e20, bytes_per_s=1e11, caches=(CacheLevel("L2", 1 << 20, 1e13),))
    conditions.inspections["cpu", "float32", 1] = [("before", best)]
    (record,) = measure_group(case.group, [case], conditions)
    row, once = record.row, 4 * 2 * 16 * 8 * 4  # q, k, v and the output
    assert row.latency_ms is not None
    assert row.bytes_moved == record.samples["bytes_moved"]
    assert row.bytes_moved == {"forward_backward": 2 * once, "decode": once // 2}.get(mode, once)
    assert row.read_from == "L2"
    assert row.bandwidth_share == pytest.approx(row.bytes_moved / (row.latency_ms / 1e3) / 1e13)
    assert row.roofline_share == pytest.approx(row.bandwidth_share)  # arithmetic takes no time at such a rate
    (other,) = measure_group(case.group, [case], Conditions(engine=LocalEngine("inline")))
    values = other.row.bytes_moved, other.row.bandwidth_share, other.row.read_from
    assert values == (row.bytes_moved, None, None)


def _measure_at_rate(*variants: str, rate: float) -> list[Row]:
    """Rows of a group on a machine with this arithmetic rate and practically unlimited memory bandwidth."""
    cases = tiny_suites.plan(tiny_suites.TINY, variants=variants)
    best = Roofline(gemm_flops_per_s=rate, bytes_per_s=1e18, gemm_by="an abacus")
    conditions = Conditions(engine=LocalEngine("inline"), inspections={("cpu", "float32", 1): [("before", best)]})
    return [record.row for record in measure_group(cases[0].group, cases, conditions)]


def test_times_above_the_roofline_are_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausibility, "MAX_RECHECKS", 0)
    for row in _measure_at_rate("full", "linear", rate=1.0):
        assert (row.status, row.latency_ms, row.speedup, row.roofline_share) == ("invalid", None, None, None)
        assert re.search(r"at least [0-9.e+-]+ GFLOP/s, the roofline is 1e-09 \(an abacus\)", row.reason or "")
    assert {row.status for row in _measure_at_rate("full", "linear", rate=1e18)} == {"ok"}


def test_an_implausible_baseline_gives_no_speedups(monkeypatch: pytest.MonkeyPatch) -> None:
    def explain(flops: float, *_: Any) -> str | None:
        return "too fast" if flops == full_flops else None

    full_flops = _measure_at_rate("full", rate=1e18)[0].flops
    monkeypatch.setattr(process_runs, "explain_implausible", explain)
    full, linear = _measure_at_rate("full", "linear", rate=1e18)
    assert (full.status, full.reason, full.latency_ms) == ("invalid", "too fast", None)
    assert (linear.status, linear.speedup) == ("ok", None)


def test_plausibility_uses_the_upper_bound_of_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[float] = []
    monkeypatch.setattr(process_runs, "explain_implausible", lambda flops, size, seconds, *_: checked.append(seconds))
    rows = _measure_at_rate("full", "linear", rate=1e18)
    assert sorted(checked) == pytest.approx(sorted((row.latency_ms_high or 0) / 1e3 for row in rows))


def _with_budget(variant: str, **axes: Any) -> Any:
    text = tiny_suites.TINY.replace('"forward"', '"decode"')
    given = {name: [value] for name, value in axes.items()}
    return measure_cases(tiny_suites.plan(text, variants=[variant], keys={"memory_budget": 10**6}, axes=given))[0].row


def test_rows_have_the_longest_context_in_the_memory_budget() -> None:
    def measure(variant: str, **axes: Any) -> tuple[Any, Any]:
        row = _with_budget(variant, **axes)
        return row.memory_budget_bytes, row.longest_context

    assert measure("full") == (10**6, 10**6 // (2 * 2 * 8 * 4))
    assert measure("full", batch=3, kv_heads=1, dtype="float64") == (10**6, 10**6 // (2 * 3 * 8 * 8))
    assert measure("mqa") == (10**6, 10**6 // (2 * 8 * 4))
    assert measure("linear") == (10**6, None)
    (without,) = measure_variants("full", mode="decode")
    assert (without.row.memory_budget_bytes, without.row.longest_context) == (None, None)


def test_a_state_allocated_later_has_no_longest_context() -> None:
    @ea.register("zz_late", family="full")
    class Late(ea.SoftmaxAttention):
        """Exact attention whose first step allocates its cache."""

        def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
            return KVCache(max_len)

    row = _with_budget("zz_late")
    assert (row.status, row.memory_budget_bytes, row.longest_context) == ("ok", None, None)
    assert "allocates its decode state in its first step" in (row.reason or "")


def test_peak_memory_is_measured_if_the_suite_requests_it() -> None:
    assert measure_variants("full")[0].row.peak_memory_bytes is None
    (row,) = (r.row for r in measure_variants("full", mode='"forward", "peak_memory"', seq_len=512))
    assert row.peak_memory_bytes is not None
    assert row.peak_memory_bytes >= (row.output_bytes or 0) > 0


def test_threads_are_set_for_one_group_only() -> None:
    before = measure_variants("full", threads=1)[0].row.threads
    assert before == 1
    assert measure_variants("full", threads=2)[0].row.threads == 2
    (case,) = tiny_suites.plan(tiny_suites.TINY.replace(", threads = [1]", ""))
    last = measure_cases([case])[0].row
    assert (last.status, last.reason) == ("ok", None)
    assert last.threads == jobs._default_threads()


def test_records_of_untimed_tasks_are_yielded_immediately() -> None:
    """In the planned order, so that an interrupted run keeps them."""
    cases = tiny_suites.plan(
        tiny_suites.TINY.replace('"forward"', '"fidelity"'), variants=["full", "linear", "gqa:kv_heads=2"]
    )
    layer = [case for case in cases if case.group.config.layer == 0]
    evaluated: list[str] = []

    class Slow(LocalEngine):
        def run(self, job: Any) -> Iterator[Any]:
            for index, outcome in super().run(job):
                evaluated.append(job.cases[index].key)
                yield index, outcome

    records = measure_group(layer[0].group, layer, Conditions(engine=Slow("inline")))
    for number, (case, record) in enumerate(zip(layer, records, strict=True), 1):
        assert record.row.case_key == case.key
        assert len(evaluated) == number
