"""Maps of alignments: which are drawn, and what is none."""

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
        Record(attempt(name, 0.9).row, {**attempt(name, 0.9).samples, **own})
        for name, own in zip(names, samples, strict=False)
    ]
    found = [plot.panel for plot in block(tmp_path, *rows).plots]
    return [panel for panel in found if isinstance(panel, Heatmap)]


def test_a_mechanism_with_an_alignment_is_a_map(tmp_path: Path) -> None:
    (found,) = _draw(tmp_path, {"alignment": WEIGHTS}, {})
    (grid,) = found.grids
    assert (grid.label, [list(line) for line in grid.shares]) == ("full", WEIGHTS)
    assert (len(found.row_labels), len(found.column_labels)) == (3, 2)
    assert "Rows are target tokens" in found.caption


def test_more_than_fit_beside_each_other_are_several(tmp_path: Path) -> None:
    first, second = _draw(tmp_path, *[{"alignment": WEIGHTS}] * 4)
    assert (len(first.grids), len(second.grids)) == (3, 1)
    assert first.name != second.name


@pytest.mark.parametrize("what", [None, 3, [], [0.5], [[0.5], [0.5, 0.5]], [["x"]], [["nan"]], [[0.0] * 65]])
def test_what_is_no_alignment_is_not_drawn(tmp_path: Path, what: Any) -> None:
    assert not _draw(tmp_path, {"alignment": what})
