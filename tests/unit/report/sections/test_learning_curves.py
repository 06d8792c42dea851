"""Plots of trained models: learning curves, scores by step time, state, length and distance, and alignments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learned_runs import attempt, block, panels, seeds

from efficient_attn.report.drawing.heatmap import Heatmap
from efficient_attn.results.rows import Record


def test_curves_show_the_first_seed_at_its_best_rate(tmp_path: Path) -> None:
    curve = panels(block(tmp_path, *seeds("full", (0.9, 0.8)), attempt("linear", 0.3)))["learning"]
    full, linear = curve.lines
    assert (full.label, list(full.x), list(full.y)) == ("full", [50, 100], [0.45, 0.9])
    assert linear.label == "linear"
    assert curve.level == 0.1
    assert "one run each, with seed 0 at its best learning rate, which is 0.002 for all." in curve.caption
    assert full.note == ""


def test_differing_rates_are_shown_with_the_names(tmp_path: Path) -> None:
    curve = panels(block(tmp_path, attempt("full", 0.9), attempt("linear", 0.3, rate=0.008)))["learning"]
    assert [line.note for line in curve.lines] == ["rate 0.002", "rate 0.008"]
    assert "which is given after its name. " in curve.caption


def test_lines_that_end_early_are_explained(tmp_path: Path) -> None:
    solved = Record(attempt("linear", 0.999).row, {"steps": [20, 40], "validation": [0.5, 0.999]})
    curve = panels(block(tmp_path, attempt("full", 0.9), solved))["learning"]
    assert "; a line that ends early was solved, or had fewer steps." in curve.caption


@pytest.mark.parametrize(
    "samples", [{}, {"steps": [1], "validation": []}, {"steps": [1, 2], "validation": [None, None]}]
)
def test_invalid_curves_are_not_drawn(tmp_path: Path, samples: dict[str, Any]) -> None:
    plots = panels(block(tmp_path, Record(attempt("full", 0.9).row, samples)))
    assert "learning" not in plots
    assert "worth" in plots


def test_scores_are_plotted_against_step_time(tmp_path: Path) -> None:
    rows = [attempt("full", 0.9, train_step_ms=20.0), attempt("full", 0.88, "best", 1, train_step_ms=22.0)]
    full, linear = panels(block(tmp_path, *rows, attempt("linear", 0.3)))["worth"].lines
    assert (list(full.x), [round(y, 3) for y in full.y]) == ([21.0], [0.89])
    assert full.low
    assert full.left
    assert linear.low is None
    assert linear.left is None


def test_seeds_that_disagree_are_drawn_one_by_one(tmp_path: Path) -> None:
    records = [*seeds("full", (0.9, 0.4, 0.85)), *seeds("linear", (0.9,))]
    full, linear = panels(block(tmp_path, *records))["worth"].lines
    assert (list(full.x), list(full.y)) == ([20.0] * 3, [0.9, 0.4, 0.85])
    assert len(linear.x) == 1


def test_scores_are_plotted_against_learning_rates(tmp_path: Path) -> None:
    failed = attempt("full", 0.0, rate=0.008).row
    failed = replace(failed, status="invalid", reason="the loss is nan at step 3", extra={}, mode=None)
    panel = panels(block(tmp_path, *seeds("full", (0.9, 0.91)), Record(failed), attempt("linear", 0.3)))["rates"]
    (line,) = panel.lines  # a single rate is no line
    assert (line.label, list(line.x), list(line.y)) == ("full", [0.001, 0.002, 0.004], [0.45, 0.9, 0.45])
    assert list(panel.ticks.values()) == ["0.001", "0.002", "0.004"]


def test_scores_have_tables_and_plots_by_length_and_distance(tmp_path: Path) -> None:
    columns = {"train_at_128": 0.5, "train_near_8": 0.9, "train_near_16": 0.4}
    ability = block(
        tmp_path, attempt("full", 0.8, **columns), attempt("full", 0.6, "best", 1, **{**columns, "train_at_128": 0.3})
    )
    lengths, distances = ability.tables[3:5]
    assert lengths.head == ("Variant", "length 64", "length 128")
    assert [cell.text for cell in lengths.rows[0]] == ["full", "70.0%", "40.0%"]
    assert distances.head == ("Variant", "5\u20138 back", "9\u201316 back")
    assert [cell.text for cell in distances.rows[0]] == ["full", "90.0%", "40.0%"]
    plots = panels(ability)
    assert list(plots["lengths"].lines[0].x) == [64, 128]
    assert list(plots["distances"].lines[0].y) == [0.9, 0.4]


def test_a_single_distance_has_no_table(tmp_path: Path) -> None:
    ability = block(tmp_path, attempt("full", 0.8, train_near_16=0.8))
    assert len(ability.tables) == 4
    assert "distances" not in panels(ability)


def test_scores_are_plotted_against_state_size_if_it_differs(tmp_path: Path) -> None:
    rows = [attempt("full", 0.9, state_bytes=32768), attempt("linear", 0.3, state_bytes=2048)]
    full, linear = panels(block(tmp_path, *rows))["state"].lines
    assert (list(full.x), list(linear.x)) == ([32768], [2048])
    assert "state" not in panels(
        block(tmp_path / "alike", *(attempt(name, 0.9, state_bytes=1) for name in ("full", "mqa")))
    )


def test_lines_over_lengths_have_bands_over_seeds(tmp_path: Path) -> None:
    rows = [attempt("full", 0.8, train_at_128=0.5), attempt("full", 0.7, "best", 1, train_at_128=0.4)]
    panel = panels(block(tmp_path, *rows))["lengths"]
    (line,) = panel.lines
    assert line.low is not None
    assert line.high is not None
    assert line.low[1] < 0.45 < line.high[1] <= 1
    assert "bands: 95% intervals over seeds" in panel.caption


# -- alignments ----------------------------------------------------------------------------------------------------

WEIGHTS = [[0.0, 1.0], [0.75, 0.25], [0.5, 0.5]]


def _draw(tmp_path: Path, *samples: dict[str, Any]) -> list[Heatmap]:
    names = ["full", "additive", "general", "cosine", "dot"]
    rows = [
        Record(attempt(name, 0.9).row, {**attempt(name, 0.9).samples, **extra})
        for name, extra in zip(names, samples, strict=False)
    ]
    panels = [plot.panel for plot in block(tmp_path, *rows).plots]
    return [panel for panel in panels if isinstance(panel, Heatmap)]


def test_an_alignment_is_drawn_as_a_heatmap(tmp_path: Path) -> None:
    (heatmap,) = _draw(tmp_path, {"alignment": WEIGHTS}, {})
    (grid,) = heatmap.grids
    assert (grid.label, [list(line) for line in grid.shares]) == ("full", WEIGHTS)
    assert (len(heatmap.row_labels), len(heatmap.column_labels)) == (3, 2)
    assert "Rows are target tokens" in heatmap.caption


def test_more_than_four_alignments_are_split(tmp_path: Path) -> None:
    first, second = _draw(tmp_path, *[{"alignment": WEIGHTS}] * 5)
    assert (len(first.grids), len(second.grids)) == (3, 2)
    assert first.name != second.name


@pytest.mark.parametrize("alignment", [None, [], [[]], [[0.5], [0.5, 0.5]], [[0.0] * 65]])
def test_invalid_alignments_are_not_drawn(tmp_path: Path, alignment: Any) -> None:
    assert not _draw(tmp_path, {"alignment": alignment})
