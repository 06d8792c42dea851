"""Comparison with other libraries: per machine, with intervals from timing errors."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd
import pytest
import report_runs as runs

from efficient_attn.report.gather import Frame
from efficient_attn.report.site.library_comparison import list_library_comparisons


def _timed(
    machine: str, speedup: float, spread: float | None = 1.1, *, device: str = "cpu", theirs: str = "peer_x"
) -> list[runs.Row]:
    """Their row and ours."""
    ends = {} if spread is None else {"speedup_low": speedup / spread, "speedup_high": speedup * spread}
    config = {"machine": machine, "mode": "forward", "seq_len": 64, "latency_ms": 1.0, "device": device}
    base = runs.row(theirs, **config, speedup=1.0, speedup_low=1.0, speedup_high=1.0, baseline=theirs)
    return [base, runs.row("linear", **config, speedup=speedup, baseline=theirs, **ends)]


def _frame(*groups: list[runs.Row]) -> Frame:
    return pd.DataFrame([asdict(row) for group in groups for row in group])


def test_machines_and_devices_are_compared_separately() -> None:
    rows = _frame(_timed("a", 4.0), _timed("b", 0.5), _timed("b", 0.5, device="cuda"))
    found = list_library_comparisons(rows, {"a": "Some CPU", "b": "b"})
    assert [(one.ours, one.theirs, one.hardware, round(one.speedup.value, 3)) for one in found] == [
        ("linear", "peer_x", "Some CPU, cpu", 4.0),
        ("linear", "peer_x", "b, cpu", 0.5),
        ("linear", "peer_x", "b, cuda", 0.5),
    ]
    assert [(one.count("faster"), one.count("slower")) for one in found] == [(1, 0), (0, 1), (0, 1)]
    assert {one.format_range() for one in found} == {"\u2013"}


def test_the_mean_over_configurations_is_more_precise() -> None:
    (one,) = list_library_comparisons(_frame(_timed("a", 2.0)), {})
    (four,) = list_library_comparisons(_frame(*(_timed("a", speedup) for speedup in (1.0, 2.0, 2.0, 4.0))), {})
    assert (one.speedup.low, one.speedup.high) == pytest.approx((2 / 1.1, 2 * 1.1))
    assert (four.speedup.low, four.speedup.high) == pytest.approx((2 / 1.1**0.5, 2 * 1.1**0.5))
    assert four.format_range() == "1.00x to 4.00x"
    assert (four.count("faster"), four.count("slower")) == (3, 0)


def test_missing_intervals_and_other_baselines() -> None:
    rows = _frame(_timed("a", 2.0), _timed("a", 2.0, None), _timed("a", 9.0, theirs="full"))
    (one,) = list_library_comparisons(rows, {})
    assert (one.format_speedup(), len(one.speedups)) == ("2.00x", 2)
