"""Decision tables on the page: columns, crossovers, folding and shading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import report_runs as runs

from efficient_attn.report import approximation_errors, gather, page, select
from efficient_attn.report.answers.decision_table import make_decision_tables
from efficient_attn.report.sections import decisions
from efficient_attn.units import INTERVAL_DASH


def chapter(tmp_path: Path, *records: Any) -> Any:
    run = runs.write_run(tmp_path / "run", [record for part in records for record in part])
    return next(s for s in page.make_content(gather.gather([run])).sections if s.anchor == decisions.ANCHOR)


def test_lines_have_crossover_speedups_error_and_memory(tmp_path: Path) -> None:
    section = chapter(tmp_path, runs.speed(), runs.decode(), runs.fidelity())
    (table, *_), *_ = [block.tables for block in section.blocks]
    assert table.head == ("Mechanism", "Faster from", "At 1K", "At 8K", "Relative error", "Memory")
    cells = [cell.text for cell in table.rows[0]]
    assert cells[:2] == ["linear", "<=512"]
    assert cells[3].endswith("\u25b2")
    assert cells[4:] == ["as far from exact attention as the mean of v", "1.27x"]
    longest, error = table.rows[0][1].narrow_lines
    assert longest == cells[3].replace(" \u25b2", " at 8K")
    assert error == cells[4]
    assert "Relative errors: MiniLM, N = 256, bidirectional, mean over 3 layers." in table.note
    steps = section.blocks[-1].tables[0]
    assert steps.head == ("Mechanism", "Faster from", "After 1K", "After 4K", "After 16K", "Relative error", "State")


def test_the_estimated_crossover_is_printed_below_its_bracket(tmp_path: Path) -> None:
    records = list(runs.speed())
    for record in records:
        if record.row.variant == "linear" and record.row.seq_len == 512:
            record.row.speedup, record.row.speedup_low, record.row.speedup_high = 0.5, 0.49, 0.51
    ((table,),) = [block.tables for block in chapter(tmp_path, records).blocks]
    cell = next(row[1] for row in table.rows if row[0].text == "linear")
    assert cell.text == f"512{INTERVAL_DASH}1K"
    assert cell.subtext.startswith("about 6")


def test_one_table_per_mode_and_direction_is_open(tmp_path: Path) -> None:
    threads = [record for n in (1, 2, 3) for record in runs.speed(lengths=(512, 1024), threads=n)]
    tables = [table for block in chapter(tmp_path, threads).blocks for table in block.tables]
    assert [table.folded for table in tables] == [False, True, True]


def test_every_speedup_is_shaded_by_its_interval(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.speed())
    (board,) = make_decision_tables(approximation_errors.add_errors(select.add_labels(gather.gather([run]).rows)))
    table = decisions.make_speedup_heatmap(board, "all")
    assert table is not None
    assert table.head == ("Mechanism", "512", "1K", "2K", "4K", "8K")
    marks = [cell.mark for cell in table.rows[0][1:]]
    assert marks[0] in ("faster-0", "faster-1")
    assert marks[-1] == "faster-3"
    assert marks == sorted(marks)
