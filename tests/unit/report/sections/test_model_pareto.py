"""Fronts of loss against cost, and maps of layers, as the page of a swap has them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report_runs as runs
from hypothesis import given
from hypothesis import strategies as st

from efficient_attn import units
from efficient_attn.report import gather, page, write_report
from efficient_attn.report.drawing.figures import Panel
from efficient_attn.report.drawing.heatmap import Heatmap
from efficient_attn.report.sections.model_pareto import compute_shade, find_pareto_points
from efficient_attn.results.rows import Record
from efficient_attn.tasks.swap import SWAP

# KL a token, time of a pass in ms, state bytes
FOUND = {
    "full": (1e-9, 100.0, 4_000_000),
    "sliding_window:window=128": (0.5, 80.0, 500_000),
    "linear": (4.0, 90.0, 300_000),
    "strided:stride=8": (0.7, 95.0, 4_000_000),
}


def read(segments: int = 4, layers: tuple[int | None, ...] = (None,)) -> Iterator[Record]:
    for segment in range(segments):
        for layer in layers:
            for variant, (lost, time, state) in FOUND.items():
                place = {"task": "swap", "seq_len": 2048, "inputs": "tiny:mine@1", "causal": True, "layer": layer}
                made = runs.row(variant, **place, baseline="full")
                made.case_key = f"swap/{layer}/{segment}/{made.case_key}"
                apart = lost * (1 + 0.1 * segment) * (1 if layer is None else 10.0**-layer)
                made.extra = {"segment": segment, "loss": 3.0 + apart, "divergence": apart, "agreement": 0.5}
                made.loss = 3.0 + apart
                if layer is None:
                    made.latency_ms, made.state_bytes = time * (1 + 0.01 * segment), state
                yield Record(made)


def pictures(tmp_path: Path, records: Iterator[Record]) -> tuple[Any, list[Any]]:
    about = runs.about() | {"sections": [section.as_json() for section in SWAP.sections]}
    run = runs.write_run(tmp_path / "run", list(records), about)
    shown = page.make_content(gather.gather([run]))
    (block,) = [block for section in shown.sections for block in section.blocks if section.title.startswith("Swapped")]
    write_report([run], tmp_path / "page")
    return block, [plot.panel for plot in block.plots]


def test_a_front_of_time_and_one_of_states(tmp_path: Path) -> None:
    _, (time, state) = pictures(tmp_path, read())
    assert isinstance(time, Panel)
    assert isinstance(state, Panel)
    assert [line.label for line in time.lines] == ["sliding_window:window=128", "strided:stride=8", "linear"]
    (window, *_) = time.lines
    assert window.low is not None
    assert window.right is not None
    assert window.low[0] < window.y[0] < 0.65
    assert math.isclose(window.x[0], 1.25)
    assert [round(x, 2) for x, _ in time.pareto_front] == [
        1.25
    ]  # nothing is slower and loses less, but the model as it is
    assert "full (1.00x)" in time.caption
    assert [x for x, _ in state.pareto_front] == [300_000, 500_000]
    svg = next((tmp_path / "page").rglob("*state*.svg")).read_text()
    assert "linear" in svg


def test_what_was_fitted_to_one_budget_stands_together(tmp_path: Path) -> None:
    records = list(read())
    for record in records:
        record.row.budget = {"linear": "64", "strided:stride=8": "128"}.get(record.row.variant)
    block, _ = pictures(tmp_path, iter(records))
    assert block.tables[0].head[:2] == ("Variant", "Budget")
    assert [(line[0].text, line[1].text) for line in block.tables[0].rows] == [
        ("full", units.EMPTY),
        ("sliding_window:window=128", units.EMPTY),
        ("linear", "64"),
        ("strided:stride=8", "128"),
    ]


def test_a_map_of_layers(tmp_path: Path) -> None:
    block, (layers,) = pictures(tmp_path, read(2, (0, 1, 2)))
    assert isinstance(layers, Heatmap)
    assert layers.row_labels == ("0", "1", "2")
    assert [grid.label for grid in layers.grids] == ["sliding_window:window=128", "linear", "strided:stride=8"]
    worst, middle, least = (row[0] for row in layers.grids[1].shares)
    assert worst == 1.0
    assert worst > (middle or 0) > (least or 0) > 0
    assert layers.grids[1].cell_texts is not None
    assert layers.grids[1].cell_texts[0] == ["4.20"]
    assert len(block.tables) == 1


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1), st.booleans())
def test_nothing_beats_what_is_on_a_front(points: list[tuple[float, float]], gains: bool) -> None:
    front = find_pareto_points(points, higher_is_better=gains)
    for point in points:
        better = [p for p in front if p[1] <= point[1] and (p[0] >= point[0] if gains else p[0] <= point[0])]
        assert better
    losses = [loss for _, loss in front]
    assert losses == sorted(set(losses), reverse=True)


def test_shades_are_logarithms() -> None:
    assert compute_shade(1.0, 1.0) == 1.0
    assert math.isclose(compute_shade(0.1, 1.0), 0.8)
    assert compute_shade(1e-9, 1.0) == compute_shade(0.0, 1.0) == 0.0
