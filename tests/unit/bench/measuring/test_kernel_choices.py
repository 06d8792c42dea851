"""Autotuned kernel choices of a session: made in a worker and shared by its cases and by later sessions of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from efficient_attn.bench.measuring import kernel_choices
from efficient_attn.bench.measuring.kernel_choices import TUNABLES
from efficient_attn.engines.job import WorkerDied
from efficient_attn.engines.local import LocalEngine
from efficient_attn.kernels.autotuning import autotuner
from efficient_attn.kernels.autotuning.candidates import TimingTable, TuningPoint
from efficient_attn.kernels.products import PRODUCTS
from efficient_attn.kernels.softmax.sdpa_kernels import ATTENTION

TABLE = TimingTable(((TuningPoint("rows", (1, 2, 3, 4)), {"by_head": 1.0, "batched": 2.0}),), "timed", 0.5)


@pytest.fixture(autouse=True)
def _cleared_choices() -> Iterator[None]:
    yield
    autotuner._TABLES.clear()
    autotuner.clear_choices()


def test_timing_tables_round_trip_through_json() -> None:
    choices = {1: {"products": TABLE}, 2: {}}
    assert kernel_choices.read_choices(json.loads(json.dumps(kernel_choices.choices_as_json(choices)))) == choices


def test_every_tunable_is_timed_for_every_thread_count() -> None:
    choices = kernel_choices.autotune(LocalEngine("inline", preload=()), [1, 2, None], [])
    assert set(choices) == {1, 2, torch.get_num_threads()}
    for tables in choices.values():
        assert set(tables) == {tunable.name for tunable in TUNABLES}


def test_choices_of_an_earlier_session_are_reused() -> None:
    earlier = {"choices": kernel_choices.choices_as_json({1: {"products": TABLE}})}
    choices = kernel_choices.autotune(LocalEngine("inline", preload=()), [1], [{}, earlier])
    assert choices[1]["products"] == TABLE
    kernel_choices.apply_choices(choices)
    assert autotuner.choose(PRODUCTS, "rows", 1, 2, 3, 4) == "by_head"


def test_rules_are_used_if_the_worker_dies() -> None:
    class Dead:
        def run(self, job: Any) -> Iterator[Any]:
            raise WorkerDied(0, 0, "crashed", "killed by SIGSEGV")

    choices = kernel_choices.autotune(Dead(), [1], [])  # type: ignore[arg-type]
    assert "SIGSEGV" in choices[1]["products"].source
    assert not choices[1]["products"].timings


def test_the_doctor_reports_the_source_of_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = kernel_choices.check_choices(1)
    assert off.level == "note"
    assert "EFFICIENT_ATTN_CALIBRATION is off" in off.message
    autotuner.use_tables(
        dict.fromkeys((tunable.name for tunable in TUNABLES), TimingTable(TABLE.timings, "kept", 0.5, cached=True)), 1
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = kernel_choices.check_choices(1)
    assert kept.level == "ok"
    assert f"timed at {len(TUNABLES)} points in" in kept.message
    autotuner.use_tables({"products": TimingTable(TABLE.timings, "measured now, not stored: no room", 0.5)}, 1)
    assert "not stored: no room" in kernel_choices.check_choices(1).message


def test_kernels_that_a_worker_times_in_a_first_call_are_those_of_later_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(autotuner.VARIABLE, raising=False)
    threads, point, choices = torch.get_num_threads(), TuningPoint("bfloat16", (2, 4, 4, 64, 64, 16)), {}
    kernel_choices.add_timed(choices, threads, kernel_choices.list_timed())
    assert choices == {}  # nothing was timed
    autotuner.choose_timed(ATTENTION, point, lambda: {"flash": 2.0, "cudnn": 1.0})
    kernel_choices.add_timed(choices, threads, kernel_choices.list_timed())
    stored = json.loads(json.dumps(kernel_choices.choices_as_json(choices)))
    autotuner._TABLES.clear()
    autotuner.clear_choices()
    kernel_choices.apply_choices(kernel_choices.read_earlier([{}, {"choices": stored}]))

    def time_again() -> dict[str, float]:
        raise AssertionError("timed again")

    assert autotuner.choose_timed(ATTENTION, point, time_again) == "cudnn"
    other = TuningPoint("bfloat16", (2, 4, 4, 128, 64, 16))
    assert autotuner.choose_timed(ATTENTION, other, lambda: {"flash": 1.0, "cudnn": 2.0}) == "flash"
    assert len(kernel_choices.list_timed()["attention"].timings) == 2


@pytest.mark.parametrize("reason", [None, "triton is not installed"])
def test_doctor_reports_whether_triton_runs(monkeypatch: pytest.MonkeyPatch, reason: str | None) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(kernel_choices, "why_no_triton", lambda device: reason)
    finding = kernel_choices.check_triton()
    assert finding.level == ("note" if reason else "ok")
    assert (reason or "decode steps in Triton") in finding.message
