"""A cell: a record for every case, whatever becomes of it, and paired speedups over those that ran."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import planted
import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench import jobs, prepare
from efficient_attn.bench.case import Case, group_by_cell
from efficient_attn.bench.cell import measure
from efficient_attn.bench.conditions import Conditions
from efficient_attn.contract.state import KVCache
from efficient_attn.engines.local import Local
from efficient_attn.instruments.ceilings import Ceiling
from efficient_attn.results.exchange import round_values
from efficient_attn.results.rows import Record
from efficient_attn.results.stats import paired_ratio

MODES = ("forward", "forward_backward", "decode", "prefill")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    threads = torch.get_num_threads()
    with planted.undone():
        yield
    torch.set_num_threads(threads)


def _measured(*variants: str, mode: str = "forward", **axes: Any) -> list[Record]:
    text = planted.TINY.replace('"forward"', mode if '"' in mode else f'"{mode}"')
    cases = planted.plan(text, variants=variants, axes={name: [value] for name, value in axes.items()})
    return _of(cases)


def _of(cases: Sequence[Case]) -> list[Record]:
    ((cell, members),) = group_by_cell(cases)
    records = measure(cell, members, Conditions(engine=Local("inline")))
    assert [r.row.case_key for r in records] == [c.key for c in members]  # exactly one a case, in order
    for record in records:
        Record.from_line(record.to_line())  # and each can be kept
    return records


@pytest.mark.parametrize("mode", MODES)
def test_what_runs_is_measured(mode: str) -> None:
    full, linear = _measured("full", "linear", mode=mode)
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
        assert all(len(passes) >= 3 for passes in record.samples["latency_ms"])
        positions = 1 if mode == "decode" else 16
        assert row.tokens_per_s == pytest.approx(positions / row.latency_ms * 1e3)
        assert row.tflops_per_s == pytest.approx(row.flops / row.latency_ms / 1e9)
    assert (full.row.backend_used, linear.row.backend_used) == ("sdpa", "chunked")


def test_speedups_are_paired_with_the_baselines_rounds() -> None:
    linear, full, window = _measured("linear", "full", "sliding_window:window=2")
    assert (full.row.speedup, full.row.speedup_low, full.row.speedup_high) == (1, 1, 1)

    for other in (linear, window):
        found = (other.row.speedup, other.row.speedup_low, other.row.speedup_high)
        assert found == pytest.approx(paired_ratio(round_values(full), round_values(other)))


def _several_heads(order: Sequence[int]) -> list[Record]:
    text = planted.TINY.replace('"forward"', '"decode"').replace("heads = 2", "heads = 4")
    return _of(planted.plan(text, variants=["full", "linear"], axes={"kv_heads": order}))


@pytest.mark.parametrize("order", [(1, 4, 2), (4, 2, 1)])
def test_of_several_key_value_heads_the_most_are_the_baseline(order: Sequence[int]) -> None:
    records = {(r.row.variant, r.row.kv_heads): r for r in _several_heads(order)}
    base = records.pop(("full", 4))
    assert (base.row.speedup, base.row.speedup_low, base.row.speedup_high) == (1, 1, 1)
    assert len(records) == 5
    for other in records.values():
        found = (other.row.speedup, other.row.speedup_low, other.row.speedup_high)
        assert found == pytest.approx(paired_ratio(round_values(base), round_values(other)))
        assert found != (1, 1, 1)


def test_a_baseline_that_fails_is_not_replaced_by_the_same_with_fewer_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_baseline(case: Case, row: Any, at: Any, **options: Any) -> Any:
        if case.is_baseline:
            raise MemoryError("too many heads")
        return original(case, row, at, **options)

    original = prepare.prepare
    monkeypatch.setattr(prepare, "prepare", fail_baseline)
    records = {(r.row.variant, r.row.kv_heads): r.row for r in _several_heads((4, 2))}
    assert records.pop(("full", 4)).status == "oom"
    assert {(row.status, row.speedup) for row in records.values()} == {("ok", None)}


def test_without_its_baseline_a_cell_has_no_speedups() -> None:
    (linear,) = _measured("linear")
    assert linear.row.status == "ok"
    assert linear.row.speedup is None


def test_work_is_counted() -> None:
    (forward,) = _measured("full", batch=3, causal=True)
    assert forward.row.pairs == 16 * 17 // 2
    assert forward.row.flops == 16 * 17 // 2 * 2 * (8 + 8) * 3 * 2
    assert forward.row.output_bytes == 3 * 2 * 16 * 8 * 4
    (both,) = _measured("full", batch=3, causal=True, mode="forward_backward")
    assert both.row.flops == forward.row.flops * 3.5
    (decode,) = _measured("full", batch=3, mode="decode")
    assert decode.row.pairs == 16
    assert decode.row.state_bytes == 2 * 3 * 2 * 16 * 8 * 4
    assert decode.row.steps == 1
    (window,) = _measured("sliding_window:window=2")
    assert window.row.pairs == 16 * 5 - 2 * 3
    assert (window.row.pairs_computed or 0) >= window.row.pairs


@pytest.mark.parametrize("mode", MODES)
def test_what_must_be_moved_is_held_against_the_memorys_rate(mode: str) -> None:
    (case,) = planted.plan(planted.TINY.replace('"forward"', f'"{mode}"'))
    setting = Conditions(engine=Local("inline"))
    setting.ceilings["cpu", "float32", 1] = Ceiling(gemm_flops_per_s=1e15, bytes_per_s=1e6)
    (record,) = measure(case.cell, [case], setting)
    row, once = record.row, 4 * 2 * 16 * 8 * 4  # q, k, v and the output
    assert row.latency_ms is not None
    assert row.bytes_moved == record.samples["bytes_moved"]
    assert row.bytes_moved == {"forward_backward": 2 * once, "decode": once // 2}.get(mode, once)
    assert row.bandwidth_share == pytest.approx(row.bytes_moved / (row.latency_ms / 1e3) / 1e6)
    assert row.roofline_share == pytest.approx(row.bandwidth_share)  # at such a rate nothing else counts
    (other,) = measure(case.cell, [case], Conditions(engine=Local("inline")))
    assert (other.row.bytes_moved, other.row.bandwidth_share) == (row.bytes_moved, None)


def _with_budget(variant: str, **axes: Any) -> Any:
    text = planted.TINY.replace('"forward"', '"decode"')
    given = {name: [value] for name, value in axes.items()}
    return _of(planted.plan(text, variants=[variant], keys={"memory_budget": 10**6}, axes=given))[0].row


def test_the_longest_context_in_a_budget_is_counted() -> None:
    def found(variant: str, **axes: Any) -> tuple[Any, Any]:
        row = _with_budget(variant, **axes)
        return row.memory_budget_bytes, row.longest_context

    assert found("full") == (10**6, 10**6 // (2 * 2 * 8 * 4))
    assert found("full", batch=3, kv_heads=1, dtype="float64") == (10**6, 10**6 // (2 * 3 * 8 * 8))
    assert found("mqa") == (10**6, 10**6 // (2 * 8 * 4))
    assert found("linear") == (10**6, None)
    (without,) = _measured("full", mode="decode")
    assert (without.row.memory_budget_bytes, without.row.longest_context) == (None, None)


def test_a_state_of_unknown_size_has_no_longest_context() -> None:
    @ea.register("zz_late", family="full")
    class Late(ea.SoftmaxAttention):
        """Exact attention whose first step allocates its cache."""

        def new_state(self, batch: int, max_len: int, dtype: torch.dtype, device: torch.device) -> KVCache:
            return KVCache(max_len)

    row = _with_budget("zz_late")
    assert (row.status, row.memory_budget_bytes, row.longest_context) == ("ok", None, None)
    assert "allocates its decode state in its first step" in (row.reason or "")


def test_memory_is_measured_where_the_suite_asks() -> None:
    assert _measured("full")[0].row.peak_memory_bytes is None
    (row,) = (r.row for r in _measured("full", mode='"forward", "peak_memory"', seq_len=512))
    assert row.peak_memory_bytes is not None
    assert row.peak_memory_bytes >= (row.output_bytes or 0) > 0


def test_threads_are_set_and_the_next_cell_gets_the_default_again() -> None:
    before = _measured("full", threads=1)[0].row.threads
    assert before == 1
    assert _measured("full", threads=2)[0].row.threads == 2
    (case,) = planted.plan(planted.TINY.replace(", threads = [1]", ""))
    assert _of([case])[0].row.threads == jobs._default_threads()


# -- whatever becomes of a case ------------------------------------------------------------------------------------


def _slow(out: Tensor) -> Tensor:
    time.sleep(0.12)
    return out


ENDS: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "unsupported": (planted.raising(ea.UnsupportedError("not here")), "unsupported", "not here"),
    "wrong": (lambda out: out * 1.1, "invalid", "not the oracle's"),
    "not finite": (lambda out: out / 0, "invalid", "not finite"),
    "allocation": (planted.raising(RuntimeError("DefaultCPUAllocator: can't allocate memory: 9")), "oom", "allocate"),
    "memory": (planted.raising(MemoryError("no more")), "oom", "MemoryError: no more"),
    "device memory": (planted.raising(torch.OutOfMemoryError("CUDA out of memory")), "oom", "CUDA out of memory"),
    "runtime": (planted.raising(RuntimeError("boom\n  at line 3")), "error", "RuntimeError: boom at line 3"),
    "another error": (planted.raising(KeyError("lost")), "error", "KeyError: 'lost'"),
    "usage": (planted.raising(ea.UsageError("no such thing")), "error", "no such thing"),
    "slow": (_slow, "timeout", "one call takes 0.12"),
}


@pytest.mark.parametrize("mode", ["forward", "decode"])
@pytest.mark.parametrize("end", ENDS)
def test_a_case_that_fails_says_why_and_the_others_go_on(end: str, mode: str) -> None:
    twist, status, says = ENDS[end]
    name = planted.plant("zz_ends", twist)
    cases = planted.plan(planted.TINY.replace('"forward"', f'"{mode}"'), variants=["full", name, "linear"])
    if end == "slow":
        first = cases[0].cell
        cell = dataclasses.replace(first, effort=dataclasses.replace(first.effort, budget_s=0.1))
        cases = [dataclasses.replace(c, cell=cell) for c in cases]
    full, failed, linear = _of(cases)
    assert failed.row.status == status
    assert says in (failed.row.reason or "")
    assert "\n" not in (failed.row.reason or "")
    assert failed.row.latency_ms is None
    assert failed.samples == {}
    assert full.row.status == linear.row.status == "ok"
    assert linear.row.speedup is not None


def test_a_baseline_that_fails_leaves_the_others_without_speedup() -> None:
    name = planted.plant("zz_base", planted.raising(RuntimeError("boom")))
    text = planted.TINY.replace('= "full"', f'= "{name}"', 1).replace('name = "full"', f'name = "{name}"')
    failed, linear = _of(planted.plan(text + '[[variant]]\nname = "linear"\n'))
    assert (failed.row.status, linear.row.status, linear.row.speedup) == ("error", "ok", None)


def test_a_case_that_fails_while_it_is_timed_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timing = False

    def twist(out: Tensor) -> Tensor:
        if timing:
            raise RuntimeError("on a later call")
        return out

    name = planted.plant("zz_later", twist)
    original = jobs.take_rounds

    def take_rounds(*args: Any, **options: Any) -> Any:
        nonlocal timing
        timing = True
        return original(*args, **options)

    monkeypatch.setattr(jobs, "take_rounds", take_rounds)
    full, failed, linear = _measured("full", name, "linear")
    assert (failed.row.status, failed.row.reason) == ("error", "RuntimeError: on a later call")
    assert failed.row.latency_ms is None
    assert failed.samples == {}
    assert (full.row.status, linear.row.status) == ("ok", "ok")
    assert linear.row.speedup is not None


def test_a_backend_that_does_not_exist_is_unsupported() -> None:
    (record,) = _measured("full:backend=magic")
    assert record.row.status == "unsupported"
    assert "no backend 'magic'" in (record.row.reason or "")


@pytest.mark.parametrize("mode", ["forward", "fidelity"])
def test_cuda_rows_are_skipped_where_there_is_none(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = planted.TINY.replace('"forward"', f'"{mode}"')
    first = group_by_cell(planted.plan(text, variants=["full", "linear"], axes={"device": ["cuda"]}))[0][1]
    for record in _of(first):
        assert (record.row.status, record.row.reason) == ("skipped", "no CUDA device on this machine")
        assert (record.row.device, record.row.latency_ms, record.row.relative_error) == ("cuda", None, None)


def test_an_interrupt_is_nobodys_result() -> None:
    with pytest.raises(KeyboardInterrupt):
        _measured(planted.plant("zz_stop", planted.raising(KeyboardInterrupt())))


# -- fidelity ----------------------------------------------------------------------------------------------------


def _faithful(*variants: str) -> list[Record]:
    cases = planted.plan(planted.TINY.replace('"forward"', '"fidelity"'), variants=variants)
    return _of([c for c in cases if c.cell.place.layer == 2])


def test_fidelity_rows_hold_errors_and_no_times() -> None:
    full, window = _faithful("full", "sliding_window:window=8")
    assert (full.row.status, full.row.task, full.row.layer, full.row.mode) == ("ok", "fidelity", 2, None)
    assert (full.row.inputs or "").startswith("minilm@")
    assert (full.row.relative_error or 1) < 1e-5
    assert (window.row.relative_error or 0) > 0.1
    assert (window.row.missed_mass or 0) > 0.1
    assert full.row.effective_keys == pytest.approx(window.row.effective_keys)
    assert full.row.latency_ms is None
    assert 0.1 < full.samples["mean_value_error"] == window.samples["mean_value_error"]


def test_fidelity_is_gated_too() -> None:
    wrong, failing, full = _faithful(
        planted.plant("zz_wrong", lambda out: out * 1.1),
        planted.plant("zz_failing", planted.raising(RuntimeError("boom"))),
        "full",
    )
    assert wrong.row.status == "invalid"
    assert wrong.row.relative_error is None
    assert (failing.row.status, full.row.status) == ("error", "ok")
