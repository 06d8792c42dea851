"""Heatmaps of alignments: which are drawn, and which data are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from learned_runs import attempt, block

from efficient_attn.report.drawing.heatmap import Heatmap
from efficient_attn.results.rows import Record

WEIGHTS = [[0.0, 1.0], [0.75, 0.25], [0.5, 0.5]]


def _draw(tmp_path: Path, *samples: dict[str, Any]) -> list[Heatmap]:
    names = ["full", "additive", "general", "cosine"]
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


def test_more_than_three_alignments_are_split(tmp_path: Path) -> None:
    first, second = _draw(tmp_path, *[{"alignment": WEIGHTS}] * 4)
    assert (len(first.grids), len(second.grids)) == (3, 1)
    assert first.name != second.name


@pytest.mark.parametrize("alignment", [None, 3, [], [0.5], [[0.5], [0.5, 0.5]], [["x"]], [["nan"]], [[0.0] * 65]])
def test_invalid_alignments_are_not_drawn(tmp_path: Path, alignment: Any) -> None:
    assert not _draw(tmp_path, {"alignment": alignment})
