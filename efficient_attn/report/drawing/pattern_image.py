"""Images of sparsity patterns: squares of queries (down) by keys (across), from arrays."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from ... import units
from .figures import SETTINGS, FigureFormat, save_figure
from .style import FAINT, GRID, INK

COLUMNS = 3  # of squares
MAX_CELLS_WITH_LINES = 48  # per side; larger grids are drawn without lines
SIDE, LEFT, RIGHT, TOP, BOTTOM = 2.15, 0.5, 0.22, 0.34, 0.46  # inches: a square and its margins
CAPTION_LINE_HEIGHT, HEAD_HEIGHT, TITLE_LINE_HEIGHT = 0.135, 0.16, 0.2  # inches; HEAD_HEIGHT: above the title
DPI = 200
MARGIN = 0.008  # of a side: padding inside the frame, which would hide a column at the edge
MIN_DEPTH = 0.45  # color saturation of a cell with few pairs, so that a diagonal stays visible


@dataclass(frozen=True, eq=False)
class PatternImage:
    """One pattern. coverage (queries, keys): booleans, or the share of pairs attended per cell. length: of the
    sequence. caption: one or several lines below the title.
    """

    coverage: Any
    length: int
    title: str
    caption: str
    colour: str = INK
    causal: bool = False


def render_patterns(squares: Sequence[PatternImage], title: str, form: FigureFormat) -> bytes:
    """Render the squares, as the content of a file: the same bytes for the same input."""
    across = min(COLUMNS, len(squares))
    down = -(-len(squares) // across)
    captions = [_wrap(square.caption, 44) for square in squares]
    above = TOP + CAPTION_LINE_HEIGHT * max(text.count("\n") for text in captions)
    square_width, square_height = LEFT + SIDE + RIGHT, above + SIDE + BOTTOM
    wrapped_title = _wrap(title, 25 * across)
    head_height = HEAD_HEIGHT + TITLE_LINE_HEIGHT * (wrapped_title.count("\n") + 1)
    width, height = across * square_width, down * square_height + head_height
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), facecolor="white")
        style = {"fontsize": 11, "fontweight": "bold", "color": INK, "va": "top"}
        figure.text(LEFT / width, 1 - HEAD_HEIGHT / height, wrapped_title, **style)
        for number, (square, caption) in enumerate(zip(squares, captions, strict=True)):
            row, column = divmod(number, across)
            left, low = column * square_width + LEFT, height - head_height - (row + 1) * square_height + BOTTOM
            axes = figure.add_axes((left / width, low / height, SIDE / width, SIDE / height))
            _draw_square(axes, square, caption, first=column == 0, last=number + across >= len(squares))
        return save_figure(figure, form, dpi=DPI)


def colour_cells(coverage: Any, colour: str, *, causal: bool) -> Any:
    """RGB of each cell: darker for higher coverage, grey for future positions under causality."""
    shares = np.asarray(coverage, dtype=float)
    depth = np.where(shares > 0, MIN_DEPTH + (1 - MIN_DEPTH) * shares, 0.0)
    picture = 1 - depth[..., None] * (1 - np.array(to_rgb(colour)))
    if causal:
        rows, keys = shares.shape
        future = np.arange(keys)[None, :] * rows >= (np.arange(rows)[:, None] + 1) * keys
        picture[future & (shares == 0)] = to_rgb(GRID)
    return picture


def _draw_square(axes: Axes, square: PatternImage, caption: str, *, first: bool, last: bool) -> None:
    """Draw the cells; axes are labeled in the first column and the last row only."""
    n, cells = square.length, np.shape(square.coverage)
    axes.imshow(
        colour_cells(square.coverage, square.colour, causal=square.causal),
        extent=(0, n, n, 0),
        interpolation="nearest" if max(cells) <= 256 else "antialiased",
        aspect="auto",
    )
    if max(cells) <= MAX_CELLS_WITH_LINES:
        for count, lines in ((cells[1], axes.axvline), (cells[0], axes.axhline)):
            for index in range(1, count):
                lines(index * n / count, color="white", linewidth=0.5)
    text_style = {"transform": axes.transAxes, "color": INK}
    title_offset = 0.09 + CAPTION_LINE_HEIGHT * (caption.count("\n") + 1)
    axes.text(0, 1 + title_offset / SIDE, square.title, fontsize=8.7, fontweight="bold", va="bottom", **text_style)
    axes.text(0, 1 + 0.06 / SIDE, caption, fontsize=7.4, va="bottom", linespacing=1.2, **text_style)
    axes.set_xlim(-MARGIN * n, (1 + MARGIN) * n)
    axes.set_ylim((1 + MARGIN) * n, -MARGIN * n)
    for axis, name, is_labelled in ((axes.xaxis, "key", last), (axes.yaxis, "query", first)):
        axis.set_ticks([0, n / 2, n], ["0", units.short_length(n // 2), units.short_length(n)])
        if is_labelled:
            axis.set_label_text(name, color=INK)
    axes.tick_params(colors=FAINT, labelcolor=INK, length=2.5, labelsize=7.4)
    axes.spines[:].set_color(FAINT)
    axes.spines[:].set_linewidth(0.6)


def _wrap(text: str, width: int) -> str:
    lines = text.split("\n")
    return "\n".join(part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False))
