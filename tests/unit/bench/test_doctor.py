"""The doctor: what it looks at, what it calls a problem, and that it can be read by people and programs."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from efficient_attn.bench import doctor
from efficient_attn.bench.doctor import Diagnosis, Finding, Noise, diagnose
from efficient_attn.instruments.ceilings import Cache, Ceiling
from efficient_attn.instruments.disturbance import Disturbance
from efficient_attn.instruments.environment.facts import Unknown
from efficient_attn.results.stats import MARGIN, Estimate

pytestmark = pytest.mark.slow

TOPICS = ["threads", "frequency", "virtual", "memory", "clock", "counting", "rates", "quiet", "noise"]


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
    assert noise.numbers["ratio"] == pytest.approx(1, abs=0.5)  # other programs run beside the tests
    assert noise.numbers["low"] <= noise.numbers["ratio"] <= noise.numbers["high"]
    assert noise.numbers["floor"] >= MARGIN
    assert "cannot be told from noise here" in noise.said


def test_lines_and_json_say_the_same(found: Diagnosis) -> None:
    lines, data = found.lines(), json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert all(any(f.said in line for line in lines) for f in found.findings)
    assert all(any(advice in line for line in lines) for advice in found.advice)
    assert lines[-1].startswith("Ready" if found.healthy else "Not ready")
    assert data["healthy"] is found.healthy
    assert [f["topic"] for f in data["findings"]] == TOPICS


def test_a_device_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "gpus", list)
    found = diagnose(quick=True, threads=1, device="cuda")
    assert not found.healthy
    assert "no CUDA device" in _of(found, "gpu").said
    assert "noise" not in [f.topic for f in found.findings]


# -- what is a problem ---------------------------------------------------------------------------------------------


def test_problems_come_first_and_spoil_health() -> None:
    note = Finding(topic="a", said="x", level="note", advice="perhaps")
    problem = Finding(topic="b", said="y", level="problem", advice="first do this")
    assert Diagnosis((note,)).healthy
    assert not Diagnosis((note, problem)).healthy
    assert Diagnosis((note, problem)).advice == ("first do this", "perhaps")
    assert Diagnosis((note, problem)).lines()[-1] == "Not ready to measure: b."


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.machine, "usable_cores", lambda: 8)
    monkeypatch.setattr(doctor.cgroups, "cpu_quota", lambda: 2.5)
    found = doctor._threads(4)
    assert found.level == "problem"
    assert "4 threads exceed the 2.5 cores that may be used: set OMP_NUM_THREADS=2" in (found.advice or "")
    assert "quota 2.5" in found.said
    assert doctor._threads(2).level == "ok"
    monkeypatch.setattr(doctor.cgroups, "cpu_quota", lambda: Unknown("none"))
    assert doctor._threads(8).level == "ok"
    assert doctor._threads(9).level == "problem"


@pytest.mark.parametrize(
    ("governor", "turbo", "advice"),
    [
        ("powersave", False, "governor is powersave: set performance"),
        ("performance", True, "turbo is on"),
        ("performance", False, None),
        (Unknown("x"), Unknown("x"), None),
    ],
)
def test_frequency(governor: Any, turbo: Any, advice: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"governor": governor, "turbo": turbo, "mhz": Unknown("x")}
    monkeypatch.setattr(doctor.machine, "frequency", lambda: facts)
    found = doctor._frequency()
    assert found.level == ("ok" if advice is None else "note")
    assert (found.advice or "").startswith(advice or "")


def test_a_hypervisor_is_worth_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"hypervisor": True, "kind": "kvm", "product": Unknown("x"), "container": None}
    monkeypatch.setattr(doctor.machine, "virtualisation", lambda: facts)
    assert doctor._virtualisation().level == "note"
    assert "expect steal" in (doctor._virtualisation().advice or "")
    facts |= {"hypervisor": False, "kind": "none"}
    assert doctor._virtualisation().level == "ok"


def test_a_memory_limit_is_told_and_too_little_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.cgroups, "memory_limit", lambda: 24 * 2**30)
    assert "memory limit 24 GiB" in doctor._memory().said
    monkeypatch.setattr(doctor, "available_memory", lambda: 2**28)
    assert doctor._memory().level == "problem"


@pytest.mark.parametrize(
    ("seen", "level", "advice"),
    [
        ({"others_cores": 0.0}, "ok", None),
        ({"others_cores": 0.9}, "problem", "another program uses 0.9 cores: stop it"),
        ({"steal_share": 0.1}, "problem", "wait for a quieter moment"),
    ],
)
def test_other_programs(seen: dict[str, float], level: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    best = Ceiling(1e11, 1e10, caches=(Cache("L2", 2**20, 4e10), Cache("L3", 2**25, 3e10)))
    monkeypatch.setattr(doctor, "ceiling", lambda *_: best)
    happened = Disturbance(**({"wall_s": 1.0, "own_cpu_s": 1.0} | seen))  # type: ignore[arg-type]
    monkeypatch.setattr(doctor.Watch, "lap", lambda self: happened)
    rates, quiet = doctor._rates("cpu", 1)
    assert rates.said == "100 GFLOP/s in a matrix product, 10 GB/s from memory, 30 from L3"
    assert (quiet.level, quiet.advice) == (level, advice)


@pytest.mark.parametrize(
    ("noise", "level"),
    [
        (Noise(Estimate(1.0, 0.99, 1.01), 0.01), "ok"),
        (Noise(Estimate(1.0, 0.9, 1.1), 0.15), "problem"),  # too loud to tell anything
        (Noise(Estimate(1.05, 1.03, 1.07), 0.02), "problem"),  # the same differs from itself
        ("it fell over", "problem"),
    ],
)
def test_noise(noise: Noise | str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_aa", lambda *_: noise)
    found = doctor._noise("cpu", 1, True)
    assert found.level == level
    if isinstance(noise, str):
        assert noise in found.said


def test_the_floor_is_what_eight_rounds_can_tell() -> None:
    assert Noise(Estimate(1.0), 0.001).floor == MARGIN
    assert Noise(Estimate(1.0), 0.1).floor == pytest.approx(math.expm1(2.365 * 0.1 / math.sqrt(8)), rel=1e-3)


def test_a_counter_that_errs_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"device": "cpu", "expected_bytes": 10, "measured_bytes": 20, "ok": False, "reason": None}
    monkeypatch.setattr(doctor, "canary", lambda device: told)
    assert doctor._canary("cpu").level == "problem"
    monkeypatch.setattr(doctor, "canary", lambda device: told | {"ok": None, "reason": "no counter"})
    assert doctor._canary("cpu").level == "note"


def test_a_coarse_clock_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "timer_resolution", lambda: 1e-3)
    assert doctor._clock().level == "problem"
