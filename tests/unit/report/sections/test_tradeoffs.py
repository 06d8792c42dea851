"""Fronts on the page: what is beaten is grey and says by whom, what is exact stands at the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import report_runs as runs

from efficient_attn.report import gather, page
from efficient_attn.report.drawing.style import FAINT
from efficient_attn.report.sections import tradeoffs


def panels(tmp_path: Path, *records: Any) -> dict[str, Any]:
    run = runs.write_run(tmp_path / "run", [record for part in records for record in part])
    sections = page.make_content(gather.gather([run])).sections
    return {
        plot.panel.name: plot.panel
        for section in sections
        if section.anchor == tradeoffs.ANCHOR
        for block in section.blocks
        for plot in block.plots
    }


def test_a_front_of_time_and_one_of_memory(tmp_path: Path) -> None:
    found = panels(tmp_path, runs.speed(), runs.fidelity())
    time, memory = found["front-time-forward-bidirectional"], found["front-memory-forward-bidirectional"]
    full, linear, window = time.lines
    assert (full.label, full.note, full.x) == ("full", "exact", [1.0])
    assert full.y[0] < min(linear.y[0], window.y[0])
    assert linear.left[0] < linear.x[0] < linear.right[0]
    assert window.low[0] < window.y[0] < window.high[0]
    assert [x for x, _ in time.pareto_front] == sorted([full.x[0], linear.x[0], window.x[0]])
    assert {line.line_style.colour == FAINT for line in memory.lines[1:]} == {True}, (
        "full needs less, and loses nothing"
    )
    assert "Dominated: linear (by full) and sliding_window:window=128 (by full)." in memory.caption


def test_what_an_interval_leaves_open_is_not_called_beaten(tmp_path: Path) -> None:
    records = list(runs.speed())
    for record in records:
        if record.row.variant == "sliding_window:window=128":
            record.row.speedup_high = 1e3
            record.row.speedup_low = 1.0
    wide = list(runs.fidelity())
    for record in wide:
        if record.row.variant == "sliding_window:window=128":
            record.row.relative_error = 0.9 + 0.1 * (record.row.layer or 0)
    panel = panels(tmp_path, records, wide)["front-time-forward-bidirectional"]
    assert "Not significantly different: sliding_window:window=128 from linear." in panel.caption
    assert "Beaten" not in panel.caption


def test_without_losses_there_is_no_front(tmp_path: Path) -> None:
    assert panels(tmp_path, runs.speed(), runs.decode()) == {}
