"""The doctor: its topics, problems, and output as text and JSON."""

from __future__ import annotations

import json
import math

import pytest
import torch

from efficient_attn.bench import doctor
from efficient_attn.bench.doctor import AANoise, Diagnosis, Finding, diagnose
from efficient_attn.results.stats import MARGIN, Estimate

pytestmark = pytest.mark.slow

MACHINE = ["threads", "frequency", "virtual", "memory", "clock"]
TOPICS = [*MACHINE, "counting", "rates", "quiet", "native", "choices", "noise"]


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return diagnose(quick=True, threads=1)


def _get_finding(diagnosis: Diagnosis, topic: str) -> Finding:
    return next(f for f in diagnosis.findings if f.topic == topic)


@pytest.mark.sampled(6)
def test_diagnosis_has_all_topics(diagnosis: Diagnosis) -> None:
    assert [f.topic for f in diagnosis.findings] == TOPICS


def test_this_machine_has_an_exact_counter_and_a_fine_clock(diagnosis: Diagnosis) -> None:
    assert _get_finding(diagnosis, "counting").numbers["ok"] is True
    assert _get_finding(diagnosis, "clock").level == "ok"
    assert _get_finding(diagnosis, "rates").numbers["gemm_flops_per_s"] > 1e9


def test_the_ratio_of_identical_code_is_near_one(diagnosis: Diagnosis) -> None:
    noise = _get_finding(diagnosis, "noise")
    assert 0.1 < noise.numbers["ratio"] < 10  # other programs run at the same time
    assert noise.numbers["low"] <= noise.numbers["ratio"] <= noise.numbers["high"]
    assert noise.numbers["floor"] >= MARGIN
    assert "are not significant here" in noise.message


def test_lines_and_json_have_the_same_findings(diagnosis: Diagnosis) -> None:
    lines, data = diagnosis.lines(), json.loads(json.dumps(diagnosis.as_json(), allow_nan=False))
    assert all(any(f.message in line for line in lines) for f in diagnosis.findings)
    assert all(any(advice in line for line in lines) for advice in diagnosis.advice)
    assert lines[-1].startswith("Ready" if diagnosis.healthy else "Not ready")
    assert data["healthy"] is diagnosis.healthy
    assert [f["topic"] for f in data["findings"]] == TOPICS


def test_an_absent_device_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    diagnosis = diagnose(quick=True, threads=1, device="cuda")
    assert not diagnosis.healthy
    assert "no CUDA device" in _get_finding(diagnosis, "gpu").message
    assert "noise" not in [f.topic for f in diagnosis.findings]


# -- problems ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "level"),
    [
        (AANoise(Estimate(1.0, 0.99, 1.01), 0.01), "ok"),
        (AANoise(Estimate(1.0, 0.9, 1.1), 0.15), "problem"),  # too noisy
        (AANoise(Estimate(1.05, 1.03, 1.07), 0.02), "problem"),  # identical code differs significantly
        ("it fell over", "problem"),
    ],
)
def test_large_or_biased_noise_is_a_problem(noise: AANoise | str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_measure_aa", lambda *_: noise)
    finding = doctor._check_noise("cpu", 1, True)
    assert finding.level == level
    if isinstance(noise, str):
        assert noise in finding.message


def test_the_noise_floor_is_that_of_eight_rounds() -> None:
    assert AANoise(Estimate(1.0), 0.001).floor == MARGIN
    assert AANoise(Estimate(1.0), 0.1).floor == pytest.approx(math.expm1(2.365 * 0.1 / math.sqrt(8)), rel=1e-3)


def test_a_wrong_memory_counter_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"device": "cpu", "expected_bytes": 10, "measured_bytes": 20, "ok": False, "reason": None}
    monkeypatch.setattr(doctor, "verify_memory_counter", lambda device: result)
    assert doctor._check_memory_counter("cpu").level == "problem"
    monkeypatch.setattr(doctor, "verify_memory_counter", lambda device: result | {"ok": None, "reason": "no counter"})
    assert doctor._check_memory_counter("cpu").level == "note"


def test_a_coarse_clock_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "measure_timer_resolution", lambda: 1e-3)
    assert doctor._check_clock().level == "problem"
