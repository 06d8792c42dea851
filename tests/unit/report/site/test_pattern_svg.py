"""Patterns as SVG."""

from __future__ import annotations

import numpy as np

from efficient_attn.report.site.pattern_svg import draw_pattern


def test_runs_of_equal_cells_are_one_rectangle() -> None:
    drawn = draw_pattern(np.array([[1.0, 1.0, 0.0], [0.5, 0.1, 1.0]]), "a window")
    assert 'viewBox="0 0 3 2"' in drawn
    assert '<path class="d3" d="M0 0h2v1h-2zM2 1h1v1h-1z"/>' in drawn
    assert '<path class="d2" d="M0 1h1v1h-1z"/>' in drawn
    assert '<path class="d1" d="M1 1h1v1h-1z"/>' in drawn


def test_titles_are_escaped() -> None:
    assert "<title>&lt;script&gt;</title>" in draw_pattern(np.zeros((1, 1)), "<script>")
