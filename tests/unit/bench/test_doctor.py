"""The doctor: what it looks at, what it calls a problem, and that it can be read by people and programs."""

from __future__ import annotations

import json
import math

import pytest
import torch

from efficient_attn.bench import doctor
from efficient_attn.bench.doctor import AANoise, Diagnosis, Finding, diagnose
from efficient_attn.results.stats import MARGIN, Estimate

pytestmark = pytest.mark.slow

TOPICS = ["threads", "frequency", "virtual", "memory", "clock", "counting", "rates", "quiet", "choices", "noise"]


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return diagnose(quick=True, threads=1)


def _of(diagnosis: Diagnosis, topic: str) -> Finding:
    return next(f for f in diagnosis.findings if f.topic == topic)


def test_everything_is_looked_at(found: Diagnosis) -> None:
    assert [f.topic for f in found.findings] == TOPICS


def test_this_machine_counts_right_and_reads_a_fine_clock(found: Diagnosis) -> None:
    assert _of(found, "counting").numbers["ok"] is True
    assert _of(found, "clock").level == "ok"
    assert _of(found, "rates").numbers["gemm_flops_per_s"] > 1e9


def test_the_same_twice_is_near_one(found: Diagnosis) -> None:
    noise = _of(found, "noise")
    assert 0.1 < noise.numbers["ratio"] < 10  # other programs run beside the tests
    assert noise.numbers["low"] <= noise.numbers["ratio"] <= noise.numbers["high"]
    assert noise.numbers["floor"] >= MARGIN
    assert "are not significant here" in noise.message


def test_lines_and_json_say_the_same(found: Diagnosis) -> None:
    lines, data = found.lines(), json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert all(any(f.message in line for line in lines) for f in found.findings)
    assert all(any(advice in line for line in lines) for advice in found.advice)
    assert lines[-1].startswith("Ready" if found.healthy else "Not ready")
    assert data["healthy"] is found.healthy
    assert [f["topic"] for f in data["findings"]] == TOPICS


def test_a_device_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "list_gpus", list)
    found = diagnose(quick=True, threads=1, device="cuda")
    assert not found.healthy
    assert "no CUDA device" in _of(found, "gpu").message
    assert "noise" not in [f.topic for f in found.findings]


# -- what is a problem ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "level"),
    [
        (AANoise(Estimate(1.0, 0.99, 1.01), 0.01), "ok"),
        (AANoise(Estimate(1.0, 0.9, 1.1), 0.15), "problem"),  # too loud to tell anything
        (AANoise(Estimate(1.05, 1.03, 1.07), 0.02), "problem"),  # the same differs from itself
        ("it fell over", "problem"),
    ],
)
def test_noise(noise: AANoise | str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_measure_aa", lambda *_: noise)
    found = doctor._check_noise("cpu", 1, True)
    assert found.level == level
    if isinstance(noise, str):
        assert noise in found.message


def test_the_floor_is_what_eight_rounds_can_tell() -> None:
    assert AANoise(Estimate(1.0), 0.001).floor == MARGIN
    assert AANoise(Estimate(1.0), 0.1).floor == pytest.approx(math.expm1(2.365 * 0.1 / math.sqrt(8)), rel=1e-3)


def test_a_counter_that_errs_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"device": "cpu", "expected_bytes": 10, "measured_bytes": 20, "ok": False, "reason": None}
    monkeypatch.setattr(doctor, "verify_memory_counter", lambda device: told)
    assert doctor._check_memory_counter("cpu").level == "problem"
    monkeypatch.setattr(doctor, "verify_memory_counter", lambda device: told | {"ok": None, "reason": "no counter"})
    assert doctor._check_memory_counter("cpu").level == "note"


def test_a_coarse_clock_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "measure_timer_resolution", lambda: 1e-3)
    assert doctor._check_clock().level == "problem"
