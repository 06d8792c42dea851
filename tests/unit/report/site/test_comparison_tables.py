"""Tables of crossover lengths, and comparison with other libraries: per machine, with intervals from timing errors."""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd
import pytest
import report_runs as runs

from efficient_attn.report.answers.crossovers import Crossover
from efficient_attn.report.answers.decision_table import Decision, DecisionTable
from efficient_attn.report.gather import Frame
from efficient_attn.report.site.comparison_tables import average_speedups, list_crossovers, make_library_table
from efficient_attn.results.stats import Estimate

CONFIG = {"suite": "s", "machine": "m", "device": "cpu", "mode": "forward", "causal": False}
SLOW, OPEN, FAST = Estimate(0.5, 0.4, 0.6), Estimate(1.0, 0.9, 1.1), Estimate(2.0, 1.9, 2.1)


def _decision(label: str, **speedups: Estimate) -> Decision:
    by_length = {int(name[1:]): value for name, value in speedups.items()}
    return Decision(
        label=label, variant=label, crossover=None, speedups=by_length, error_text="exact", error=Estimate(0.0)
    )


def _table(*decisions: Decision, baseline: str = "full", **config: object) -> DecisionTable:
    return DecisionTable(config=CONFIG | config, baseline=baseline, lengths=(4096,), decisions=decisions)


def test_cells_are_classified_and_empty_where_nothing_was_measured() -> None:
    decisions = _decision("whole", n512=SLOW, n1024=OPEN, n2048=FAST), _decision("few", n1024=FAST)
    (shown,) = list_crossovers([_table(*decisions)], {"m": "M (2 cores)"})
    whole, few = shown.table.rows
    assert shown.table.head == ("Mechanism", "Faster from", "512", "1K", "2K")
    assert [(cell.mark, cell.text) for cell in whole[2:]] == [
        ("slower", "0.500x"), ("unclear", "1.00x"), ("faster", "2.00x"),
    ]  # fmt: skip
    assert [(cell.mark, cell.text) for cell in few[2:]] == [("", ""), ("faster", "2.00x"), ("", "")]
    assert shown.config_text == "M (2 cores), cpu"


def test_a_crossover_below_the_shortest_length_is_described_in_words() -> None:
    (faster, single) = (
        replace(_decision("a", n2048=FAST), crossover=Crossover("always", None, 2048, None, None, None, (), longest))
        for longest in (8192, 2048)
    )
    (shown,) = list_crossovers([_table(faster, single)], {})
    assert [row[1].text for row in shown.table.rows] == ["at most 2K (shortest measured)", "at 2K"]


def test_the_configuration_with_most_speedups_over_exact_attention_is_shown() -> None:
    one, more = _decision("a", n100=FAST), _decision("a", n100=FAST, n1000=FAST)
    tables = [_table(one), _table(more, machine="other"), _table(more, more, baseline="peer_x")]
    (shown,) = list_crossovers(tables, {"other": "Other"})
    assert shown.config_text.startswith("Other")
    assert list_crossovers(tables[2:], {}) == []
    assert list_crossovers([_table(one, mode="train")], {}) == []


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
    table = make_library_table(rows, {"a": "Some CPU", "b": "b"})
    assert [[cell.text.partition(" (")[0] for cell in row] for row in table.rows] == [
        ["linear", "4.00x", "peer_x", "Some CPU, cpu", "\u2013", "1", "1", "0"],
        ["linear", "0.500x", "peer_x", "b, cpu", "\u2013", "1", "0", "1"],
        ["linear", "0.500x", "peer_x", "b, cuda", "\u2013", "1", "0", "1"],
    ]
    assert [table.is_text(column) for column in range(4)] == [True, False, True, True]
    assert table.caption == "Our mechanisms compared with other libraries"


def test_the_mean_over_configurations_is_more_precise() -> None:
    one, four = (
        [Estimate(value, value / 1.1, value * 1.1) for value in values] for values in ((2.0,), (1.0, 2.0, 2.0, 4.0))
    )
    assert average_speedups(one) == pytest.approx((2.0, 2 / 1.1, 2 * 1.1))
    assert average_speedups(four) == pytest.approx((2.0, 2 / 1.1**0.5, 2 * 1.1**0.5))
    (row,) = make_library_table(_frame(*(_timed("a", speedup.value) for speedup in four)), {}).rows
    assert [cell.text for cell in row[4:]] == ["1.00x to 4.00x", "4", "3", "0"]


def test_missing_intervals_and_other_baselines() -> None:
    rows = _frame(_timed("a", 2.0), _timed("a", 2.0, None), _timed("a", 9.0, theirs="full"))
    (row,) = make_library_table(rows, {}).rows
    assert (row[1].text, row[5].text) == ("2.00x", "2")
