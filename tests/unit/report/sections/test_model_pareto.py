"""Pareto fronts of divergence against cost, and heatmaps of layers, of the swap task."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report_runs as runs
from hypothesis import given
from hypothesis import strategies as st
from learned_runs import SWAPPED, swapped

from efficient_attn import units
from efficient_attn.report import gather, page
from efficient_attn.report.drawing.heatmap import Heatmap
from efficient_attn.report.drawing.panel_data import Panel
from efficient_attn.report.sections.model_pareto import compute_shade, find_pareto_points
from efficient_attn.report.write import write_report
from efficient_attn.results.rows import Record
from efficient_attn.tasks.swap import SWAP


def block_and_panels(tmp_path: Path, records: Iterator[Record]) -> tuple[Any, list[Any]]:
    about = runs.about() | {"sections": [section.as_json() for section in SWAP.sections]}
    run = runs.write_run(tmp_path / "run", list(records), about)
    shown = page.make_content(gather.gather([run]))
    (block,) = [block for section in shown.sections for block in section.blocks if section.title.startswith("Swapped")]
    write_report([run], tmp_path / "page")
    return block, [plot.panel for plot in block.plots]


def test_quality_is_drawn_against_time_and_state(tmp_path: Path) -> None:
    _, (time, state) = block_and_panels(tmp_path, swapped())
    assert isinstance(time, Panel)
    assert isinstance(state, Panel)
    by_label = {line.label: line for line in time.lines}
    assert set(by_label) == set(SWAPPED)
    window, full = by_label["sliding_window:window=128"], by_label["full"]
    assert window.low is not None
    assert window.right is not None
    assert window.low[0] < window.y[0] < math.exp(0.65)
    assert math.isclose(window.x[0], 0.8), "time, over that of the unmodified model"
    assert (full.x, full.y, full.note) == ([1.0], [1.0], "1.00x"), "a ratio of 1 is on the scale"
    assert not time.has_lane
    assert [round(x, 2) for x, _ in time.pareto_front] == [0.8, 1.0]
    assert [x for x, _ in state.pareto_front] == [500_000, 4_000_000], "linear is above the scale"
    svg = next((tmp_path / "page").rglob("*state*.svg")).read_text()
    assert "linear" in svg


def test_segments_of_a_resumed_run_are_one_result(tmp_path: Path) -> None:
    records = list(swapped())
    records[-1].row.run_id = "resumed"
    _, (time, *_) = block_and_panels(tmp_path, iter(records))
    assert sorted(line.label for line in time.lines) == sorted(SWAPPED)


def test_great_perplexities_stand_above_the_scale(tmp_path: Path) -> None:
    _, (time, *_) = block_and_panels(tmp_path, swapped())
    by_label = {line.label: line for line in time.lines}
    lowest, top = time.bounds
    assert time.level < by_label["linear"].y[0] < top
    assert by_label["linear"].note == "99.5x", "the value itself"
    assert by_label["linear"].low is None
    others = [y for label, line in by_label.items() if label != "linear" for y in (*line.y, *(line.low or ()))]
    assert lowest < min(others) < max(others) < time.level
    assert all(y < time.level for _, y in time.pareto_front)
    assert "not to scale" in time.caption


def test_encoders_have_exact_mechanisms_in_a_lane(tmp_path: Path) -> None:
    records = list(swapped())
    for record in records:
        record.row.extra = {"segment": record.row.extra["segment"], "hidden_error": record.row.extra["divergence"]}
        record.row.loss = None
    _, (time, *_) = block_and_panels(tmp_path, iter(records))
    assert time.ylabel == "error of hidden states"
    assert [line.label for line in time.lines if time.is_exact(line.x[0], line.y[0])] == ["full"]
    assert time.front_end == 1.0


def test_a_single_mechanism_has_no_chart(tmp_path: Path) -> None:
    records = (record for record in swapped() if record.row.variant == "full")
    assert block_and_panels(tmp_path, records)[1] == []


def test_variants_are_grouped_by_budget(tmp_path: Path) -> None:
    records = list(swapped())
    for record in records:
        record.row.budget = {"linear": "64", "strided:stride=8": "128"}.get(record.row.variant)
    block, _ = block_and_panels(tmp_path, iter(records))
    assert block.tables[0].head[:2] == ("Variant", "Budget")
    assert [(line[0].text, line[1].text) for line in block.tables[0].rows] == [
        ("full", units.EMPTY),
        ("sliding_window:window=128", units.EMPTY),
        ("linear", "64"),
        ("strided:stride=8", "128"),
    ]


def test_layers_are_drawn_as_a_heatmap(tmp_path: Path) -> None:
    block, (layers,) = block_and_panels(tmp_path, swapped(2, (0, 1, 2)))
    assert isinstance(layers, Heatmap)
    assert layers.row_labels == ("0", "1", "2")
    assert [grid.label for grid in layers.grids] == ["sliding_window:window=128", "linear", "strided:stride=8"]
    worst, middle, least = (row[0] for row in layers.grids[1].shares)
    assert worst == 1.0
    assert worst > (middle or 0) > (least or 0) > 0
    assert layers.grids[1].cell_texts is not None
    assert layers.grids[1].cell_texts[0] == ["4.20"]
    assert len(block.tables) == 1


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1))
def test_every_point_is_matched_or_dominated_by_the_front(points: list[tuple[float, float]]) -> None:
    front = find_pareto_points(points)
    assert all(any(cost <= x and error <= y for cost, error in front) for x, y in points)
    divergences = [divergence for _, divergence in front]
    assert divergences == sorted(set(divergences), reverse=True)


def test_shades_are_logarithmic() -> None:
    assert compute_shade(1.0, 1.0) == 1.0
    assert math.isclose(compute_shade(0.1, 1.0), 0.8)
    assert compute_shade(1e-9, 1.0) == compute_shade(0.0, 1.0) == 0.0
