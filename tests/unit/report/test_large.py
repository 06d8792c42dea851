"""Reports of many or damaged rows: omissions are stated."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import report_runs as runs

from efficient_attn import units
from efficient_attn.report import gather, page, select, tables
from efficient_attn.report.drawing import figures, length_plots, style
from efficient_attn.report.sections import appendix, section_blocks, speed
from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record
from efficient_attn.results.shards import DamagedRecord

pytestmark = pytest.mark.slow


def _rows(records: list[Record], folder: Path) -> Any:
    return select.add_labels(gather.gather([runs.write_run(folder / "run", records)]).rows)


def _with_distinct_keys(records: list[Record]) -> list[Record]:
    """The records with distinct case keys, so that none supersedes another."""
    for number, record in enumerate(records):
        record.row.case_key = f"case{number}"
    return records


def test_damaged_lines_are_counted_and_named_on_the_page(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.speed())
    lines = (run / "rows.jsonl").read_text().splitlines(keepends=True)
    (run / "rows.jsonl").write_text("".join(["x\n" * 8, *lines[8:]]))
    with pytest.warns(DamagedRecord) as warned:
        written = write_report([run], tmp_path / "out")
    assert [str(warning.message).split(": ")[1] for warning in warned] == [
        "not a complete record, and 7 other lines; left out (`--resume` measures it again)"
    ]
    named = ", ".join(f"run/rows.jsonl:{n}" for n in range(1, 7))
    for path in (written.page, written.markdown):
        text = path.read_text()
        assert f"8 damaged lines were left out of this report: {named} and 2 more." in text
        assert "12 cases of 4 variants" in text


def test_intact_runs_report_no_damage(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.speed(lengths=(512,)))
    written = write_report([run], tmp_path / "out")
    assert "left out" not in written.page.read_text() + written.markdown.read_text()


def _wide(count: int, variants: int, lengths: tuple[int, ...] = (512, 1024)) -> list[Record]:
    """Rows of ``count`` settings with ``variants`` variants each, including the baseline."""
    names = ["full", *(f"linear:n={i}" for i in range(1, variants))]
    return _with_distinct_keys([
        Record(runs.row(name, mode="forward", threads=threads, seq_len=n, latency_ms=n * 1e-3))
        for threads in range(1, count + 1) for name in names for n in lengths
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("count", "most_plots", "most_lines", "drawn", "limit"),
    [(6, 6, 99, 6, ""), (6, 5, 99, 5, "5 plots"), (6, 9, 10, 5, "10 lines")],
)
def test_numbers_of_plots_and_lines_are_limited(
    count: int,
    most_plots: int,
    most_lines: int,
    drawn: int,
    limit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(section_blocks, "MOST_PLOTS", most_plots)
    monkeypatch.setattr(section_blocks, "MOST_LINES", most_lines)
    run = runs.write_run(tmp_path / "run", _wide(count, 2))
    text = page.as_markdown(page.make_content(gather.gather([run])))
    assert text.count("](plots/") == drawn
    assert text.count("Not drawn, because a report has at most ") == count - drawn
    assert text.count(f"at most {limit}: Time: forward") == count - drawn


def test_directions_share_limits(tmp_path: Path) -> None:
    rows = select.filter_timed(_rows([*runs.speed(), *runs.speed(causal=True)], tmp_path))
    (setting,) = select.split_settings(rows)
    assert [(piece.mode, piece.causal) for piece in setting.slices] == [("forward", False), ("forward", True)]
    context = figures.PlotContext(style.choose_line_styles(rows["label"]))
    panels = list(length_plots.make_length_plots(setting, (speed.TIME_PLOT, length_plots.SPEEDUP), context))
    assert [len(panel.labels) for panel in panels] == [4, 4, 3, 3]
    both, causal, *speedups = panels
    low, high = both.bounds or (0, 0)
    assert both.bounds == causal.bounds
    ends = [end for panel in (both, causal) for line in panel.lines for end in (line.low or ()) + (line.high or ())]
    assert low < min(ends) < max(ends) < high
    assert speedups[0].bounds == speedups[1].bounds != both.bounds


def test_split_variants_keeps_values_and_order(tmp_path: Path) -> None:
    rows = select.filter_timed(_rows(list(runs.speed()), tmp_path))
    variants = select.split_variants(rows)
    assert list(variants) == list(dict.fromkeys(rows["label"]))
    for label, columns in variants.items():
        expected = rows[rows["label"] == label]
        for name in select.CURVE_COLUMNS:
            np.testing.assert_array_equal(columns[name], expected[name].to_numpy())
    assert select.split_variants(rows[:0]) == {}


def test_headline_rows_have_the_longest_length_of_most_variants(tmp_path: Path) -> None:
    records = [r for r in runs.speed() if not (r.row.variant == "full" and (r.row.seq_len or 0) > 2048)]
    rows = select.filter_timed(_rows(records, tmp_path))
    top = select.find_headline_rows(rows, "latency_ms")
    assert set(top["seq_len"]) == {2048}
    assert list(top["latency_ms"]) == sorted(top["latency_ms"])
    assert len(top) == 4
    assert select.find_headline_rows(rows, "state_bytes").empty
    assert tables.list_row_values(top)[0]["label"] == top["label"].iloc[0]


def test_table_cells_are_escaped() -> None:
    body = page.make_table_body([["<b>", "1"], ["a & b", "<b>"]])
    assert str(body) == "<tr><td>&lt;b&gt;</td><td>1</td></tr>\n<tr><td>a &amp; b</td><td>&lt;b&gt;</td></tr>\n"


@pytest.mark.parametrize("empty", [None, float("nan"), pd.NA, pd.NaT, np.nan])
def test_missing_values_are_not_present(empty: object) -> None:
    assert not units.is_present(empty)
    assert all(units.is_present(value) for value in (0, 0.0, "", False, float("inf"), np.float64(1)))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_state_is_restored(enabled: bool, tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run", runs.speed(lengths=(512,)))
    (gc.enable if enabled else gc.disable)()
    try:
        write_report([run], tmp_path / "out")
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.sampled(6)
def test_too_many_rows_are_aggregated_and_link_the_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.write_run(tmp_path / "run", [*runs.speed(), *runs.speed(causal=True), *runs.failures()])
    whole = page.make_content(gather.gather([run]))
    assert (whole.rows.count, len(whole.rows.cells), whole.rows.aggregated) == (48, 48, False)
    monkeypatch.setattr(appendix, "MOST_ROWS", 20)
    short = page.make_content(gather.gather([run]))
    assert (short.rows.count, short.rows.aggregated) == (48, True)
    assert len(short.rows.cells) <= 20
    lines = [dict(zip(short.rows.names, cells, strict=True)) for cells in short.rows.cells]
    assert sum(int(line["rows"]) for line in lines) == 48
    linear = [line for line in lines if line["variant"] == "linear" and line["status"] == "ok"]
    assert {(line["rows"], line["seq_len_min"], line["seq_len_max"]) for line in linear} == {("5", "512", "8192")}
    html = page.as_html(short)
    assert 'All 48 rows are in <a href="rows.csv">rows.csv</a>' in html
    assert ">Summary of rows</h2>" in html


def test_omitted_settings_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "MOST_SETTINGS", 2)
    threads = [record for n in (1, 2, 3) for record in runs.speed(lengths=(512, 1024), threads=n)]
    (details,) = page.make_content(gather.gather([runs.write_run(tmp_path / "run", threads)])).folded
    assert len(details.blocks) == 2
    assert details.blocks[-1].note == "1 more setting not shown here: all rows are in rows.csv."
