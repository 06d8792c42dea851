"""Process runs on a simulated GPU: events, its work, sensors, energy, and errors after which it answers no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import tiny_suites
import torch
from inline_measurement import measure_variants, watch_timing
from simulated_cuda import L2_BYTES, simulate_nvml, simulated_cuda
from torch import Tensor

from efficient_attn.bench.measuring import inputs, jobs, round_job, samples
from efficient_attn.instruments import energy, integrity, timing

pytestmark = pytest.mark.slow
GPU_COLUMNS = ("gpu_ms", "launches", "gpu_busy_ms", "launch_bound", "idle_watts", "energy_j")


@pytest.fixture(autouse=True)
def _isolated_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(energy, "MIN_MEASURED_S", 0.02)
    monkeypatch.setattr(energy, "IDLE_S", 0.01)
    monkeypatch.setattr(timing, "MIN_ROUND_S", 0)
    monkeypatch.setattr(timing, "MIN_SAMPLE_S", 0)
    monkeypatch.setattr(integrity, "describe_replacement", lambda: None)  # of torch's functions by the simulation
    with tiny_suites.isolated_registry():
        yield


def _measure(*variants: str, nvml: Any = None, dtype: str = "bfloat16", **axes: Any) -> list[Any]:
    with simulated_cuda(nvml):
        return measure_variants(*variants, device="cuda", dtype=dtype, **axes)


@pytest.mark.parametrize(
    ("mode", "dtype"), [("forward", "bfloat16"), ("forward_backward", "float16"), ("decode", "bfloat16")]
)
def test_rows_of_a_gpu_have_its_time_and_launches(mode: str, dtype: str) -> None:
    for record in _measure(*["full", "linear"][: 1 + (mode == "forward")], mode=mode, dtype=dtype, seq_len=17, batch=2):
        row = record.row
        assert (row.status, row.reason) == ("ok", None)
        assert row.gpu_ms > 0
        assert [len(x) for x in record.samples["gpu_ms"]] == [len(x) for x in record.samples["latency_ms"]]
        calls = 16 if mode == "decode" else 1  # in the trace
        assert (row.launches, row.gpu_busy_ms) == (round(2 / calls), pytest.approx(0.002 / calls))
        assert row.launch_bound is True
        assert (row.idle_watts, row.energy_j) == (None, None)
        assert "not installed" in record.samples["seen"][0]["gpu"]["unknown"]["sm_mhz"]


def test_rows_of_a_processor_have_none_of_it() -> None:
    (record,) = measure_variants("full")
    assert [getattr(record.row, name) for name in GPU_COLUMNS] == [None] * len(GPU_COLUMNS)
    assert "gpu_ms" not in record.samples
    assert "gpu" not in record.samples["seen"][0]


def test_energy_and_the_power_of_an_idle_gpu_are_measured() -> None:
    (record,) = _measure("full", nvml=simulate_nvml(watts=250.0))
    assert record.row.idle_watts == pytest.approx(250, rel=0.5)
    assert record.row.energy_j is not None
    assert record.samples["seen"][0]["gpu"]["sm_mhz"] == [1500, 1500, 1500]
    assert "GPU" not in str(record.samples["disturbed"])


@pytest.mark.parametrize(
    ("nvml", "reason"),
    [
        (simulate_nvml(reasons=0x20 | 0x04), "the GPU was throttled: temperature"),
        (simulate_nvml(pids=(1, os.getpid(), os.getppid(), 99_999_999)), "other processes were on the GPU: 99999999"),
    ],
)
def test_throttling_and_other_processes_disturb_a_process_run(nvml: Any, reason: str) -> None:
    (record,) = _measure("full", nvml=nvml)
    assert record.row.contaminated == record.row.rounds
    assert reason in record.samples["disturbed"]["0"]


@pytest.mark.parametrize("stage", ["preparation", "timing"])
def test_an_error_after_which_the_gpu_answers_no_more_costs_one_case(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_timing, broken = watch_timing(monkeypatch), False

    def synchronize() -> None:
        if broken:
            raise RuntimeError("CUDA error: device-side assert triggered")

    def twist(out: Tensor) -> Tensor:
        nonlocal broken
        broken = broken or stage == "preparation" or is_timing()
        return out

    for job in (jobs.PrepareCases, round_job.MeasureRounds):

        def run_in_another_worker(*arguments: Any, original: Any = job.run) -> None:
            nonlocal broken
            broken = False
            original(*arguments)

        monkeypatch.setattr(job, "run", run_in_another_worker)
    name = tiny_suites.register_modified("zz_asserts", twist)
    with simulated_cuda() as patch:
        patch.setattr(torch.cuda, "synchronize", synchronize)
        full, failed, linear = measure_variants("full", name, "linear", device="cuda", dtype="bfloat16")
    assert (failed.row.status, failed.row.reason) == ("error", "RuntimeError: CUDA error: device-side assert triggered")
    assert (full.row.status, linear.row.status) == ("ok", "ok")
    assert linear.row.speedup is not None


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")]
)
def test_too_little_gpu_memory_is_oom(error: Exception) -> None:
    name = tiny_suites.register_modified("zz_large", tiny_suites.raising(error))
    full, failed = _measure("full", name)
    assert (full.row.status, failed.row.status) == ("ok", "oom")


def test_cold_calls_on_a_gpu_cycle_through_separate_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[inputs.RowPool] = []
    original = inputs.RowPool.__init__

    def record(self: inputs.RowPool, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        pools.append(self)

    monkeypatch.setattr(samples, "FLUSH_BYTES", 4096)
    monkeypatch.setattr(timing, "MIN_SAMPLE_S", 0.002)
    monkeypatch.setattr(inputs.RowPool, "__init__", record)
    (measured,) = _measure("full", cache="cold", seq_len=33)
    assert (measured.row.status, measured.row.reason, measured.row.cache) == ("ok", None, "cold")
    *_, q, k, v = pools
    assert all(a.data_ptr() + a.nbytes <= b.data_ptr() for x in (q, k, v) for a, b in pairwise(x.tensors))
    assert sum(x.nbytes for pool in (q, k, v) for x in pool.tensors) > 2 * L2_BYTES
    assert measured.samples["calls"] > 1
