"""Images of sparsity patterns: squares of queries (down) by keys (across), from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from ... import units
from .canvas import Box, Chart, measure_head
from .figures import SETTINGS, FigureFormat, save_figure
from .labels import ChartFormat, wrap_words
from .style import FAINT, GRID, INK

COLUMNS = 3  # of squares
MAX_CELLS_WITH_LINES = 48  # per side; larger grids are drawn without lines
SIDE, LEFT, RIGHT, TOP, BOTTOM = 155.0, 36.0, 16.0, 16.0, 33.0  # points: a square and its margins
TEXT_SIZE, TITLE_SIZE = 7.4, 11.0  # points
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
    sizes = ChartFormat(across * (LEFT + SIDE + RIGHT), TEXT_SIZE, TEXT_SIZE, TITLE_SIZE)
    with matplotlib.rc_context(SETTINGS):
        captions = [
            [text for line in square.caption.split("\n") for text in wrap_words(line, TEXT_SIZE, SIDE + RIGHT)]
            for square in squares
        ]
        square_height = TOP + sizes.line_height * max(map(len, captions)) + SIDE + BOTTOM
        chart = Chart(sizes, measure_head(title, "", sizes) + -(-len(squares) // across) * square_height)
        start = chart.write_head(title, "")
        for number, (square, caption) in enumerate(zip(squares, captions, strict=True)):
            row, column = divmod(number, across)
            left, low = column * (LEFT + SIDE + RIGHT) + LEFT, start - (row + 1) * square_height + BOTTOM
            axes = chart.add_axes(Box(left, low, left + SIDE, low + SIDE))
            _draw_square(axes, square, first=column == 0, last=number + across >= len(squares))
            for line, text in enumerate([*reversed(caption), square.title], 1):
                y = low + SIDE + (line - 0.25) * sizes.line_height
                chart.write(left, y, text, bold=line > len(caption))
        return save_figure(chart.figure, form, dpi=DPI, facecolor="white")


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


def _draw_square(axes: Axes, square: PatternImage, *, first: bool, last: bool) -> None:
    """Draw the cells; axes are labeled in the first column and the last row only."""
    n, cells = square.length, np.shape(square.coverage)
    axes.imshow(
        colour_cells(square.coverage, square.colour, causal=square.causal),
        extent=(0, n, n, 0),
        interpolation="nearest" if max(cells) <= 256 else "antialiased",
        aspect="auto",
    )
    if max(cells) <= MAX_CELLS_WITH_LINES:
        for count, draw_lines in ((cells[1], axes.vlines), (cells[0], axes.hlines)):
            draw_lines(np.arange(1, count) * n / count, 0, n, color="white", linewidth=0.5)
    axes.set(xlim=(-MARGIN * n, (1 + MARGIN) * n), ylim=((1 + MARGIN) * n, -MARGIN * n))
    for axis, name, is_labelled in ((axes.xaxis, "key", last), (axes.yaxis, "query", first)):
        axis.set_ticks([0, n / 2, n], ["0", units.short_length(n // 2), units.short_length(n)])
        axis.set_label_text(name if is_labelled else "", color=INK)
    axes.tick_params(colors=FAINT, labelcolor=INK, length=2.5, labelsize=TEXT_SIZE)
    axes.spines[:].set(color=FAINT, linewidth=0.6)
