"""Heatmaps of shares, one grid per variant, for instance by length and depth or by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .. import formatting
from .canvas import PADDING, Box, Chart, measure_head
from .labels import PAGE_FORMAT, lay_out_label, measure_width
from .panel_data import Line, Picture
from .style import COLOURS, FAINT, GRID, INK, NULL_STYLE

MAX_COLUMNS, MAX_GRIDS = 2, 4  # grids in a row, and in a heatmap
GAP, CELL_HEIGHT = 9.0, 13.0  # points: between grids; height of a cell
MAX_HEIGHT = 255.0  # points of all rows of grids; grids with many rows have lower cells
DARK_SHARE = 0.55  # cells with at least this share have white text


@dataclass(frozen=True)
class HeatmapGrid:
    """The shares of one variant, from 0 to 1, as rows of cells; None where unknown.

    cell_texts: texts of the cells, if other than the share in percent.
    """

    label: str
    shares: Sequence[Sequence[float | None]]
    cell_texts: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class Heatmap(Picture):
    """Grids that share the labels of their rows and columns."""

    grids: tuple[HeatmapGrid, ...]
    column_labels: tuple[str, ...]
    row_labels: tuple[str, ...]
    xlabel: str
    ylabel: str

    @property
    def labels(self) -> list[str]:
        """The labels of grids."""
        return [grid.label for grid in self.grids]

    def split(self) -> list[tuple[str, Picture]]:
        """Several heatmaps with few grids each."""
        batches = formatting.split_evenly(self.grids, MAX_GRIDS)
        return [(text, replace(self, grids=tuple(grids))) for text, grids in batches]

    def draw(self) -> Figure:
        """The heatmap as a matplotlib figure."""
        form, columns = PAGE_FORMAT, min(MAX_COLUMNS, len(self.grids))
        left = PADDING + max(measure_width(text, form.small) for text in (*self.row_labels, "8")) + 4.0
        width = (form.width - left - PADDING - (columns - 1) * GAP) / columns
        names = [lay_out_label(Line(label, NULL_STYLE, (), ()), form, width, max_lines=2) for label in self.labels]
        name_height = max(len(name.lines) for name in names) * form.line_height + 4.0
        row_count, top, below = -(-len(self.grids) // columns), form.text + 6.0, form.small + form.text + 8.0
        grid_height = min(CELL_HEIGHT * len(self.row_labels), MAX_HEIGHT / row_count)
        row_height = name_height + grid_height + below
        height = measure_head(self.title, self.config_text, form) + top + row_count * row_height
        chart = Chart(form, height)
        start = chart.write_head(self.title, self.config_text)
        chart.write(PADDING, start - form.text / 2, self.ylabel)
        for number, (grid, name) in enumerate(zip(self.grids, names, strict=True)):
            row, column = divmod(number, columns)
            low, x = start - top - (row + 1) * row_height + below, left + column * (width + GAP)
            axes = chart.add_axes(Box(x, low, x + width, low + grid_height))
            is_last = number + columns >= len(self.grids)
            self._draw_grid(axes, grid, first=column == 0, last=is_last)
            chart.write_label(x, low + grid_height + 2.0 + len(name.lines) * form.line_height / 2, name)
            if is_last:
                chart.write(x + width / 2, low - form.small - 4.0 - form.text / 2, self.xlabel, ha="center")
        return chart.figure

    def _draw_grid(self, axes: Axes, grid: HeatmapGrid, *, first: bool, last: bool) -> None:
        """Draw the cells with their texts; ticks are labeled in the first column and the last row only."""
        small, columns, rows = PAGE_FORMAT.small, len(self.column_labels), len(self.row_labels)
        axes.set(xlim=(0, columns), ylim=(rows, 0), facecolor="none")
        extent = axes.get_window_extent()
        room, every = extent.width / columns - 1.0, math.ceil(1.1 * small * rows / extent.height)
        for y, row in enumerate(grid.shares):
            for x, share in enumerate(row):
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour_share(share), linewidth=0))
                text = "\u2013" if share is None else f"{100 * share:.0f}"
                text = grid.cell_texts[y][x] if grid.cell_texts else text
                ink = "white" if share is not None and share >= DARK_SHARE else INK
                if every == 1 and measure_width(text, small) <= room:
                    axes.text(x + 0.5, y + 0.5, text, fontsize=small, color=ink, ha="center", va="center")
        row_texts = [name if i % every == 0 else "" for i, name in enumerate(self.row_labels)]
        axes.set_yticks([i + 0.5 for i in range(rows)], row_texts if first else [""] * rows)
        axes.set_xticks([i + 0.5 for i in range(columns)], self.column_labels if last else [""] * columns)
        axes.tick_params(colors=FAINT, labelcolor=INK, length=0, labelsize=small, pad=2)
        axes.spines[:].set_visible(False)


def colour_share(share: float | None) -> tuple[float, float, float, float]:
    """Transparent for 0, the full color for 1, grey for unknown."""
    return to_rgba(GRID) if share is None else to_rgba(COLOURS[0], share)
