"""Attention patterns as SVG, colored by the page's style sheet, and the cards of families, which have a small one."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, NamedTuple

from markupsafe import Markup

SHADE_LEVELS = (0.0, 0.2, 0.7)  # thresholds of the shades


class PatternDrawing(NamedTuple):
    """A pattern over ``length`` positions. shares: fraction of query-key pairs attended per cell, 0 to 1."""

    direction: str
    length: int
    caption: str
    shares: Any


def draw_pattern(shares: Any, title: str) -> Markup:
    """Draw a square of queries (rows) by keys (columns), darker where more pairs are attended."""
    depths = ([sum(share > least for least in SHADE_LEVELS) for share in row] for row in shares.tolist())
    return _draw_depths(depths, title)


@cache
def read_families() -> Mapping[str, Mapping[str, str]]:
    """The texts of the cards in ``families.toml``, in the order of the file."""
    return tomllib.loads((files(__package__ or "") / "families.toml").read_text(encoding="utf-8"))


def draw_picture(picture: str, title: str) -> Markup:
    """Draw the picture of a card: a square of depths, in which ``x12`` after a line repeats it."""
    lines = [line.partition(" x") for line in picture.replace(".", "0").splitlines()]
    return _draw_depths((map(int, depths) for depths, _, count in lines for _ in range(int(count or 1))), title)


def _draw_depths(rows: Iterable[Iterable[int]], title: str) -> Markup:
    """Draw each run of equal cells in a row as a rectangle in the path of its depth, up to the number of shades."""
    paths = [""] * (1 + len(SHADE_LEVELS))
    x = y = 0
    for y, row in enumerate(rows, 1):
        x = 0
        for depth, cells in groupby(row):
            width = len(list(cells))
            paths[depth] += f"M{x} {y - 1}h{width}v1h-{width}z"
            x += width
    drawn = (Markup('<path class="d{}" d="{}"/>').format(depth, path) for depth, path in enumerate(paths) if depth)
    start = Markup('<svg class="pattern" viewBox="0 0 {} {}" role="img"><title>{}</title>').format(x, y, title)
    return start + Markup("").join(drawn) + Markup("</svg>")
