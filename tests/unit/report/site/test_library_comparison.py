"""Comparison with other libraries: per machine, with intervals from timing errors."""

from __future__ import annotations

import pytest
import report_runs as runs

from efficient_attn.report.site.group_results import GroupResult, TimedMechanism
from efficient_attn.report.site.library_comparison import list_library_comparisons


def _group(
    machine: str, speedup: float, spread: float | None = 1.1, *, device: str = "cpu", theirs: str = "peer_x"
) -> GroupResult:
    ends = {} if spread is None else {"speedup_low": speedup / spread, "speedup_high": speedup * spread}
    config = {"machine": machine, "mode": "forward", "seq_len": 64, "latency_ms": 1.0, "device": device}
    base = runs.row(theirs, **config, speedup=1.0, speedup_low=1.0, speedup_high=1.0)
    own = runs.row("linear", **config, speedup=speedup, **ends)
    cases = tuple(TimedMechanism(row.variant, row, "exact", None) for row in (base, own))
    return GroupResult((machine, "forward"), 64, "here", cases)


def test_machines_and_devices_are_compared_separately() -> None:
    groups = [_group("a", 4.0), _group("b", 0.5), _group("b", 0.5, device="cuda")]
    found = list_library_comparisons(groups, {"a": "Some CPU"})
    assert [(one.hardware, round(one.speedup.value, 3)) for one in found] == [
        ("a (Some CPU), cpu", 4.0),
        ("b, cpu", 0.5),
        ("b, cuda", 0.5),
    ]
    assert [(one.count("faster"), one.count("slower"), len(one.rows)) for one in found] == [
        (1, 0, 1),
        (0, 1, 1),
        (0, 1, 1),
    ]
    assert {one.format_range() for one in found} == {"\u2013"}


def test_the_mean_over_configurations_is_more_precise() -> None:
    (one,) = list_library_comparisons([_group("a", 2.0)], {})
    (four,) = list_library_comparisons([_group("a", speedup) for speedup in (1.0, 2.0, 2.0, 4.0)], {})
    assert (one.speedup.low, one.speedup.high) == pytest.approx((2 / 1.1, 2 * 1.1))
    assert (four.speedup.low, four.speedup.high) == pytest.approx((2 / 1.1**0.5, 2 * 1.1**0.5))
    assert four.format_range() == "1.00x to 4.00x"
    assert (four.count("faster"), four.count("slower")) == (3, 0)


def test_missing_intervals_and_other_baselines() -> None:
    (one,) = list_library_comparisons([_group("a", 2.0), _group("a", 2.0, None), _group("a", 9.0, theirs="full")], {})
    assert (one.format_speedup(), len(one.rows)) == ("2.00x", 2)
