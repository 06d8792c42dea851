"""Attention patterns as SVG, colored by the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup

SHADE_LEVELS = (0.0, 0.2, 0.7)  # thresholds of the shades


@dataclass(frozen=True, eq=False)
class PatternDrawing:
    """A pattern over ``length`` positions. shares: fraction of query-key pairs attended per cell, 0 to 1."""

    direction: str
    length: int
    caption: str
    shares: Any


def draw_pattern(shares: Any, title: str) -> Markup:
    """Draw a square of queries (rows) by keys (columns), darker where more pairs are attended."""
    rows = [[sum(share > least for least in SHADE_LEVELS) for share in row] for row in shares.tolist()]
    down, across = len(rows), max(map(len, rows), default=0)
    paths = (
        Markup('<path class="d{}" d="{}"/>').format(level, "".join(_list_rectangles(rows, level)))
        for level in range(1, len(SHADE_LEVELS) + 1)
    )
    start = Markup('<svg class="pattern" viewBox="0 0 {} {}" role="img"><title>{}</title>').format(across, down, title)
    return start + Markup("").join(paths) + Markup("</svg>")


def _list_rectangles(rows: list[list[int]], level: int) -> Iterator[str]:
    """Yield SVG path commands of one rectangle for each horizontal run of cells of a level."""
    for y, row in enumerate(rows):
        x = 0
        for cell_level, cells in groupby(row):
            width = len(list(cells))
            if cell_level == level:
                yield f"M{x} {y}h{width}v1h-{width}z"
            x += width
