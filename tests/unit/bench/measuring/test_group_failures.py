"""Failures of cases: each case has one record with a status and a reason, and other cases are measured."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tiny_suites
import torch
from inline_measurement import measure_cases, measure_variants, watch_timing
from torch import Tensor

import efficient_attn as ea
from efficient_attn.bench.case import group_cases
from efficient_attn.registry import class_of


@pytest.fixture(autouse=True)
def _isolated_registry() -> Iterator[None]:
    threads = torch.get_num_threads()
    with tiny_suites.isolated_registry():
        yield
    torch.set_num_threads(threads)


def _slow(out: Tensor) -> Tensor:
    time.sleep(0.4)
    return out


FAILURES: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "unsupported": (tiny_suites.raising(ea.UnsupportedError("not here")), "unsupported", "not here"),
    "wrong": (lambda out: out * 1.1, "invalid", "differs from the reference"),
    "not finite": (lambda out: out / 0, "invalid", "not finite"),
    "allocation": (
        tiny_suites.raising(RuntimeError("DefaultCPUAllocator: can't allocate memory: 9")),
        "oom",
        "allocate",
    ),
    "memory": (tiny_suites.raising(MemoryError("no more")), "oom", "MemoryError: no more"),
    "device memory": (tiny_suites.raising(torch.OutOfMemoryError("CUDA out of memory")), "oom", "CUDA out of memory"),
    "runtime": (tiny_suites.raising(RuntimeError("boom\n  at line 3")), "error", "RuntimeError: boom at line 3"),
    "another error": (tiny_suites.raising(KeyError("lost")), "error", "KeyError: 'lost'"),
    "usage": (tiny_suites.raising(ea.UsageError("no such thing")), "error", "no such thing"),
    "slow": (_slow, "timeout", "one call takes 0."),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["forward", "decode"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_case_has_a_reason_and_others_are_measured(failure: str, mode: str) -> None:
    twist, status, reason = FAILURES[failure]
    name = tiny_suites.register_modified("zz_ends", twist)
    cases = tiny_suites.plan(tiny_suites.TINY.replace('"forward"', f'"{mode}"'), variants=["full", name, "linear"])
    if failure == "slow":
        first = cases[0].group
        group = dataclasses.replace(first, sampling=dataclasses.replace(first.sampling, budget_s=0.3))
        cases = [dataclasses.replace(c, group=group) for c in cases]
    full, failed, linear = measure_cases(cases)
    assert failed.row.status == status
    assert reason in (failed.row.reason or "")
    assert "\n" not in (failed.row.reason or "")
    assert failed.row.latency_ms is None
    assert failed.samples == {}
    assert full.row.status == linear.row.status == "ok"
    assert linear.row.speedup is not None


def test_other_cases_have_no_speedup_if_the_baseline_fails() -> None:
    name = tiny_suites.register_modified("zz_base", tiny_suites.raising(RuntimeError("boom")))
    text = tiny_suites.TINY.replace('= "full"', f'= "{name}"', 1).replace('name = "full"', f'name = "{name}"')
    failed, linear = measure_cases(tiny_suites.plan(text + '[[variant]]\nname = "linear"\n'))
    assert (failed.row.status, linear.row.status, linear.row.speedup) == ("error", "ok", None)


def test_a_case_that_fails_while_timed_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    is_timing = watch_timing(monkeypatch)

    def twist(out: Tensor) -> Tensor:
        if is_timing():
            raise RuntimeError("on a later call")
        return out

    name = tiny_suites.register_modified("zz_later", twist)
    full, failed, linear = measure_variants("full", name, "linear")
    assert (failed.row.status, failed.row.reason) == ("error", "RuntimeError: on a later call")
    assert failed.row.latency_ms is None
    assert failed.samples == {}
    assert (full.row.status, linear.row.status) == ("ok", "ok")
    assert linear.row.speedup is not None


def test_an_unknown_backend_is_unsupported() -> None:
    (record,) = measure_variants("full:backend=magic")
    assert record.row.status == "unsupported"
    assert "no backend 'magic'" in (record.row.reason or "")


@pytest.mark.parametrize("mode", ["forward", "decode"])
def test_a_dtype_that_the_backend_lacks_is_unsupported(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_of("strided"), "only_dtypes", {"blocks": (torch.float32, torch.float64)})
    failed, full = measure_variants("strided:backend=blocks", "full", mode=mode, dtype="bfloat16")
    assert failed.row.status == "unsupported"
    reason = "strided:backend=blocks: backend 'blocks' takes torch.float32 and torch.float64 only, not torch.bfloat16"
    assert failed.row.reason == reason
    assert full.row.status == "ok"


@pytest.mark.parametrize("mode", ["forward", "fidelity"])
def test_cuda_cases_are_skipped_without_a_cuda_device(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = tiny_suites.TINY.replace('"forward"', f'"{mode}"')
    first = group_cases(tiny_suites.plan(text, variants=["full", "linear"], axes={"device": ["cuda"]}))[0][1]
    for record in measure_cases(first):
        assert (record.row.status, record.row.reason) == ("skipped", "no CUDA device on this machine")
        assert (record.row.device, record.row.latency_ms, record.row.relative_error) == ("cuda", None, None)


def test_an_interrupt_is_not_recorded_as_a_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        measure_variants(tiny_suites.register_modified("zz_stop", tiny_suites.raising(KeyboardInterrupt())))


def test_a_count_that_is_not_json_fails_only_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    name = tiny_suites.register_modified("zz_counts", lambda out: out)
    monkeypatch.setattr(class_of(name), "pairs", lambda self, n, m, causal: np.arange(2))
    failed, linear = measure_variants(name, "linear")
    assert (failed.row.status, failed.row.pairs, linear.row.status) == ("error", None, "ok")
    assert "ndarray" in (failed.row.reason or "")
