"""Patterns as SVG, and the cards of families."""

from __future__ import annotations

import numpy as np

from efficient_attn.report.site.pattern_svg import draw_pattern, draw_picture, read_families
from efficient_attn.variants import FAMILIES


def test_runs_of_equal_cells_are_one_rectangle() -> None:
    drawn = draw_pattern(np.array([[1.0, 1.0, 0.0], [0.5, 0.1, 1.0]]), "a window")
    assert 'viewBox="0 0 3 2"' in drawn
    assert '<path class="d3" d="M0 0h2v1h-2zM2 1h1v1h-1z"/>' in drawn
    assert '<path class="d2" d="M0 1h1v1h-1z"/>' in drawn
    assert '<path class="d1" d="M1 1h1v1h-1z"/>' in drawn


def test_titles_are_escaped() -> None:
    assert "<title>&lt;script&gt;</title>" in draw_pattern(np.zeros((1, 1)), "<script>")


def test_every_family_has_a_card_with_a_square_picture() -> None:
    families = read_families()
    assert list(families) == list(FAMILIES)
    for card in families.values():
        drawn = draw_picture(card["picture"], card["title"])
        assert 'viewBox="0 0 12 12"' in drawn
        assert 'd="M' in drawn
    assert '<path class="d1" d="M0 0h2v1h-2zM0 1h2v1h-2z"/>' in draw_picture("11. x2\n", "lines")
