"""Small drawings as SVG that take their colours from the page: patterns of attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup

SHADE_LEVELS = (0.0, 0.2, 0.7)  # a share above each of them is a shade darker


@dataclass(frozen=True, eq=False)
class PatternDrawing:
    """A pattern over so many positions. shares: of each cell's query-key pairs, from 0 to 1. told: what it keeps."""

    direction: str
    length: int
    caption: str
    shares: Any


def draw_pattern(shares: Any, title: str) -> Markup:
    """A square of queries (down) by keys (across), darker where more pairs are kept."""
    rows = [[sum(share > least for least in SHADE_LEVELS) for share in row] for row in shares.tolist()]
    down, across = len(rows), max(map(len, rows), default=0)
    paths = (
        Markup('<path class="d{}" d="{}"/>').format(level, "".join(_list_rectangles(rows, level)))
        for level in range(1, len(SHADE_LEVELS) + 1)
    )
    start = Markup('<svg class="pattern" viewBox="0 0 {} {}" role="img"><title>{}</title>').format(across, down, title)
    return start + Markup("").join(paths) + Markup("</svg>")


def _list_rectangles(rows: list[list[int]], level: int) -> Iterator[str]:
    """A rectangle for each run of cells of one level, in a path's words."""
    for y, row in enumerate(rows):
        x = 0
        for cell_level, cells in groupby(row):
            width = len(list(cells))
            if cell_level == level:
                yield f"M{x} {y}h{width}v1h-{width}z"
            x += width
