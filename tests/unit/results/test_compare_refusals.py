"""Runs that cannot be compared: different machines, no common case."""

from __future__ import annotations

from typing import Any

import pytest
from compare_runs import record, run, steady

from efficient_attn.errors import UsageError
from efficient_attn.results.compare import compare


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("machine", "M1-x8", "machine Xeon-x2-15GiB in a, M1-x8 in b"),
        ("torch", "2.14.0", "torch 2.13.0 in a, 2.14.0 in b"),
        ("gpu_libraries", "fla-core 0.6.0", "gpu libraries unknown in a, fla-core 0.6.0 in b"),
        ("threads_default", 4, "threads default 2 in a, 4 in b"),
    ],
)
def test_different_machines_are_refused_without_across_machines(name: str, value: Any, message: str) -> None:
    records = [record("linear", 64, steady(2))]
    sides = run(records, "a"), run(records, "b", **{name: value})
    with pytest.raises(UsageError, match=f"different machines: {message}; add --across-machines"):
        compare(*sides)
    assert compare(*sides, across_machines=True).unlike == (message,)


def test_sessions_of_one_run_must_agree_too() -> None:
    records = [record("linear", 64, steady(2))]
    mixed = run(records, "a")
    mixed = type(mixed)(name="a", records=records, environments=[*mixed.environments, {"machine": "M1"}])
    with pytest.raises(UsageError, match="machine M1 and Xeon-x2-15GiB in a, M1 and Xeon-x2-15GiB in a"):
        compare(mixed, mixed)


def test_a_run_without_an_environment_is_refused() -> None:
    silent = type(run([]))(name="a", records=[record("linear", 64, steady(2))], environments=[])
    with pytest.raises(UsageError, match="machine unknown in a, unknown in a"):
        compare(silent, silent)
    assert compare(silent, silent, across_machines=True).changes


def test_a_tolerance_below_the_margin_is_refused() -> None:
    records = [record("linear", 64, steady(2))]
    with pytest.raises(UsageError, match=r"--tolerance 0\.01 is below --margin 0\.02"):
        compare(run(records), run(records), tolerance=0.01)


def test_runs_without_a_case_in_common_are_refused() -> None:
    with pytest.raises(UsageError, match="a and b share no case"):
        compare(run([record("linear", 64, steady(2))], "a"), run([record("linear", 128, steady(2))], "b"))
