"""Warnings and refusals of plans that are expected to need more memory than there is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tiny_suites

from efficient_attn.bench.planning import cost_estimate
from efficient_attn.bench.planning.cost_estimate import ANY_RATES, check_memory, estimate_cost, warn_of_memory
from efficient_attn.errors import UsageError

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_memory(total: int | None, available: int | None) -> None:
        monkeypatch.setattr(cost_estimate, "find_total_memory", lambda: total)
        monkeypatch.setattr(cost_estimate, "find_available_memory", lambda: available)

    return set_memory


def _plan(seq_len: int = 2**20, **axes: int) -> list[Any]:
    return tiny_suites.plan(axes={"seq_len": [16, seq_len]} | {name: [value] for name, value in axes.items()})


def _warn(cases: list[Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_memory(cases, estimate_cost(cases, best=ANY_RATES))
    return [str(warning.message) for warning in caught]


def test_more_than_half_of_the_available_memory_is_a_warning(machine: Any) -> None:
    cases = _plan(batch=4)
    peak = estimate_cost(cases, best=ANY_RATES).peak_bytes
    machine(64 * GIB, 2 * peak)
    assert _warn(cases) == []
    machine(64 * GIB, 2 * peak - 10)
    (message,) = _warn(cases)
    assert message.startswith("expected memory: part 'all', forward at 1,048,576, batch 4 (full) about ")
    assert message.endswith("are available")
    assert " at 16" not in message


def test_more_than_the_machine_has_is_refused(machine: Any) -> None:
    cases = _plan()
    peak = estimate_cost(cases, best=ANY_RATES).peak_bytes
    machine(peak, 64 * GIB)
    check_memory(cases)
    machine(peak - 1, 64 * GIB)
    with pytest.raises(UsageError, match=r"^run: expected memory: .* at 1,048,576 \(full\) .*--memory-limit"):
        check_memory(cases)


def test_the_rates_of_the_machine_are_not_measured(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(64 * GIB, 64 * GIB)
    monkeypatch.setattr("efficient_attn.bench.planning.cost_estimate.measure_roofline_rates", None)
    check_memory(_plan(16))


def test_unknown_memory_refuses_nothing(machine: Any) -> None:
    machine(None, None)
    check_memory(_plan(2**26))


def test_code_of_plugins_is_not_called(machine: Any) -> None:
    """Before a run only workers may call it."""
    machine(1, 64 * GIB)
    with tiny_suites.isolated_registry():
        case = tiny_suites.case(tiny_suites.register_modified("zz_of_a_plugin"))
        check_memory([case])
    with pytest.raises(UsageError, match="expected memory"):
        check_memory(_plan(16))


def test_a_warning_says_what_run_refuses(machine: Any) -> None:
    machine(1, 1)
    (message,) = _warn(_plan(16))
    assert message.endswith(" are available; run refuses more than the machine has")


def test_many_groups_are_summarized(machine: Any) -> None:
    machine(64 * GIB, 1)
    (message,) = _warn(tiny_suites.plan(axes={"seq_len": [16, 32, 64, 128, 256]}))
    assert ", 2 more; " in message
    assert message.index("at 256") < message.index("at 128") < message.index("at 64")
    assert "at 32" not in message


def test_other_devices_do_not_count(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    machine(1, 1)
    check_memory(tiny_suites.plan(axes={"device": ["cuda"]}))
