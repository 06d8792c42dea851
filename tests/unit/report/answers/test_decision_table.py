"""Decision tables: lengths, errors, memory and states of each mechanism come from its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import report_runs as runs

from efficient_attn.report import approximation_errors, gather, select
from efficient_attn.report.answers.decision_table import DecisionTable, choose_lengths, make_decision_tables


def boards(tmp_path: Path, *records: Any) -> list[DecisionTable]:
    run = runs.write_run(tmp_path / "run", [record for part in records for record in part])
    return make_decision_tables(approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows)))


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        ([512, 1024, 8192, 32768], (1024, 8192, 32768)),
        ([512, 8192], (512, 8192)),
        ([8192], (8192,)),
        ([64, 128], (128,)),
        ([1536, 6000, 10**6], (1536, 6000, 10**6)),
    ],
)
def test_usual_lengths_are_represented_by_the_nearest_ones(measured: list[int], shown: tuple[int, ...]) -> None:
    assert choose_lengths(measured) == shown


def test_each_configuration_has_a_table_with_the_fastest_first(tmp_path: Path) -> None:
    found, steps = boards(tmp_path, runs.speed(), runs.decode(), runs.fidelity())
    assert (found.config["mode"], found.config["causal"], found.baseline) == ("forward", False, "full")
    assert found.lengths == (1024, 8192)
    assert found.decisions[0].label == "linear"
    linear, window = found.decisions[0], found.decisions[1]
    assert linear.longest_speedup
    assert linear.longest_speedup[0] == 8192
    assert linear.speedups[8192].low == pytest.approx(linear.speedups[8192].value * 0.97)
    assert linear.error_text == "as far from exact attention as the mean of v"
    assert window.error_text == "relative error 0.108"
    assert linear.memory_ratio == pytest.approx(4.2 / 3.3, rel=1e-3)
    assert steps.config["mode"] == "decode"


def test_states_are_of_the_longest_context_at_the_same_shape(tmp_path: Path) -> None:
    (_, steps) = boards(tmp_path, runs.speed(), runs.decode())
    by_label = {d.label: d for d in steps.decisions}
    mqa = by_label["mqa"]
    assert (mqa.state_bytes, mqa.state_length) == (2 * 64 * 4 * 16384, 16384)
    assert mqa.state_share == 1 / 8


def test_states_of_other_shapes_only_have_a_share(tmp_path: Path) -> None:
    wide = [record for record in runs.speed() if record.row.variant in ("full", "linear")]
    steps = list(runs.decode((4096,)))
    for record in steps:
        if record.row.variant == "mqa":
            record.row.variant, record.row.state_bytes = "linear", 4096
    forward, _ = boards(tmp_path, wide, steps)
    (linear,) = forward.decisions
    assert (linear.state_bytes, linear.state_length) == (None, 4096)
    assert linear.state_share == 4096 / (2 * 8 * 64 * 4 * 4096)


def test_rows_without_a_baseline_make_no_table(tmp_path: Path) -> None:
    alone = [record for record in runs.speed() if record.row.variant == "full"]
    assert boards(tmp_path, alone, runs.fidelity(), runs.failures()) == []
