"""Readiness of the machine: findings from the system, and the warning at the start of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from efficient_attn.bench import readiness
from efficient_attn.bench.readiness import Diagnosis, Finding, check_machine
from efficient_attn.instruments.disturbance import Disturbance
from efficient_attn.instruments.environment.readings import Unknown


def _disturbance(**values: Any) -> Disturbance:
    return Disturbance(**({"wall_s": 1.0, "own_cpu_s": 1.0} | values))


def test_problems_come_first_and_make_a_diagnosis_unhealthy() -> None:
    note = Finding(topic="a", message="x", level="note", advice="perhaps")
    problem = Finding(topic="b", message="y", level="problem", advice="first do this")
    assert Diagnosis((note,)).healthy
    assert not Diagnosis((note, problem)).healthy
    assert Diagnosis((note, problem)).advice == ("first do this", "perhaps")
    assert Diagnosis((note, problem)).lines()[-1] == "Not ready to measure: b."


def test_more_threads_than_cores_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness.machine, "count_usable_cores", lambda: 8)
    monkeypatch.setattr(readiness.cgroups, "read_cpu_quota", lambda: 2.5)
    finding = readiness.check_threads(4)
    assert finding.level == "problem"
    assert "4 threads exceed the 2.5 cores that may be used: set OMP_NUM_THREADS=2" in (finding.advice or "")
    assert "quota 2.5" in finding.message
    assert readiness.check_threads(2).level == "ok"
    monkeypatch.setattr(readiness.cgroups, "read_cpu_quota", lambda: Unknown("none"))
    assert readiness.check_threads(8).level == "ok"
    assert readiness.check_threads(9).level == "problem"


@pytest.mark.parametrize(
    ("governor", "turbo", "advice"),
    [
        ("powersave", False, "governor is powersave: set performance"),
        ("performance", True, "turbo is on"),
        ("performance", False, None),
        (Unknown("x"), Unknown("x"), None),
    ],
)
def test_notes_on_cpu_frequency(governor: Any, turbo: Any, advice: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"governor": governor, "turbo": turbo, "mhz": Unknown("x")}
    monkeypatch.setattr(readiness.machine, "read_frequency", lambda: facts)
    finding = readiness.check_frequency()
    assert finding.level == ("ok" if advice is None else "note")
    assert (finding.advice or "").startswith(advice or "")


def test_a_hypervisor_gives_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    facts: dict[str, Any] = {"hypervisor": True, "kind": "kvm", "product": Unknown("x"), "container": None}
    monkeypatch.setattr(readiness.machine, "read_virtualisation", lambda: facts)
    assert readiness.check_virtualisation().level == "note"
    assert "take processor time" in (readiness.check_virtualisation().advice or "")
    facts |= {"hypervisor": False, "kind": "none"}
    assert readiness.check_virtualisation().level == "ok"


def test_a_memory_limit_is_reported_and_low_memory_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness.cgroups, "read_memory_limit", lambda: 24 * 2**30)
    assert "memory limit 24 GiB" in readiness.check_memory().message
    monkeypatch.setattr(readiness, "find_available_memory", lambda: 2**28)
    assert readiness.check_memory().level == "problem"


@pytest.mark.parametrize(
    ("values", "level", "advice"),
    [
        ({"others_cores": 0.0}, "ok", None),
        ({"others_cores": 0.9}, "problem", "another program uses 0.9 cores: stop it"),
        ({"steal_share": 0.1}, "problem", "measure at a time with less other activity"),
    ],
)
def test_load_of_other_programs_is_a_problem(values: dict[str, float], level: str, advice: str | None) -> None:
    quiet = readiness.check_load(_disturbance(load=1.5, **values), 1)
    assert (quiet.level, quiet.advice) == (level, advice)
    assert quiet.message.endswith(", load 1.50")


# -- the start of a run --------------------------------------------------------------------------------------------


@pytest.fixture
def _ready_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness.machine, "count_usable_cores", lambda: 2)
    monkeypatch.setattr(readiness.cgroups, "read_cpu_quota", lambda: Unknown("none"))
    monkeypatch.setattr(readiness, "find_available_memory", lambda: 2**33)
    monkeypatch.setattr(readiness.machine, "read_frequency", lambda: FREQUENCY)


FREQUENCY: dict[str, Any] = {"governor": "performance", "turbo": True, "mhz": Unknown("x")}


@pytest.mark.usefixtures("_ready_machine")
def test_a_ready_machine_has_no_warning() -> None:
    diagnosis = check_machine(_disturbance(others_cores=0.1), 1)
    assert (diagnosis.healthy, diagnosis.warning) == (True, None)  # turbo is a note of `doctor` only
    assert [f.topic for f in diagnosis.findings] == ["frequency", "memory", "threads", "quiet"]
    assert [f.topic for f in check_machine(None, None).findings] == ["frequency", "memory"]
    json.dumps(diagnosis.as_json(), allow_nan=False)


@pytest.mark.usefixtures("_ready_machine")
def test_problems_are_joined_to_a_warning_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "find_available_memory", lambda: 2**28)
    monkeypatch.setattr(readiness.machine, "read_frequency", lambda: FREQUENCY | {"governor": "powersave"})
    warning = check_machine(_disturbance(others_cores=1.3, load=2.1), 4).warning or ""
    assert "\n" not in warning
    assert warning.split("; ") == [
        "governor is powersave: set performance (cpupower frequency-set -g performance)",
        "free some memory: at least 1 GiB",
        "4 threads exceed the 2 cores that may be used: set OMP_NUM_THREADS=2",
        "other programs used 1.3 cores, load 2.10",
    ]
