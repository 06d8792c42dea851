"""Pareto fronts on the page: dominated variants are grey and named, exact ones lie at the bottom."""

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


def test_fronts_of_time_and_memory_are_drawn(tmp_path: Path) -> None:
    fronts = panels(tmp_path, runs.speed(), runs.fidelity())
    time, memory = fronts["front-time-forward-bidirectional"], fronts["front-memory-forward-bidirectional"]
    full, linear, window = time.lines
    assert (full.label, full.x, full.y[0] < 1e-5) == ("full", [1.0], True)
    assert time.is_exact(full.x[0], full.y[0]), "in its own lane, with its own error"
    low, _ = time.resolve().bounds
    assert low > 0.3 * min(linear.y[0], window.y[0]), "the scale is that of the others"
    assert linear.left[0] < linear.x[0] < linear.right[0]
    assert window.low[0] < window.y[0] < window.high[0]
    assert [x for x, _ in time.pareto_front] == sorted([linear.x[0], window.x[0]])
    assert time.front_end == full.x[0]
    assert {line.line_style.colour == FAINT for line in memory.lines[1:]} == {True}, (
        "full needs less memory and is exact"
    )
    assert "Dominated: linear (by full) and sliding_window:window=128 (by full)." in memory.caption
    conditions = " Errors: MiniLM, N = 256, bidirectional, mean over 3 layers."
    assert all(panel.caption.count(conditions) == 1 for panel in fronts.values())


def test_overlapping_intervals_are_not_significantly_different(tmp_path: Path) -> None:
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
    assert "Dominated" not in panel.caption


def test_no_front_without_errors(tmp_path: Path) -> None:
    assert panels(tmp_path, runs.speed(), runs.decode()) == {}
