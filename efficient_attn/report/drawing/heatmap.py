"""Heatmaps of shares, one grid per variant, for instance by length and depth or by layer."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator

from .figures import CONFIG_LETTERS, CONFIG_LINE_HEIGHT, WIDTH, Picture
from .style import COLOURS, FAINT, GRID, INK

MAX_COLUMNS = 3  # grids in a row
LEFT, GAP, CELL_HEIGHT = 0.62, 0.28, 0.17  # inches: left margin, gap between grids, height of a cell
HEAD_HEIGHT, NAME_HEIGHT, BELOW_HEIGHT = 0.36, 0.4, 0.34  # inches: title; name above and axis below each grid
MAX_LETTERS = 25  # approximate length of a line of a name
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

    def make_figure(self) -> Figure:
        """The heatmap as a matplotlib figure."""
        columns = min(MAX_COLUMNS, len(self.grids))
        row_count = -(-len(self.grids) // columns)
        config_text = textwrap.wrap(self.config_text, CONFIG_LETTERS)
        top, grid_height = HEAD_HEIGHT + CONFIG_LINE_HEIGHT * len(config_text), CELL_HEIGHT * len(self.row_labels)
        height = top + row_count * (NAME_HEIGHT + grid_height + BELOW_HEIGHT)
        grid_width = (WIDTH - LEFT - GAP * MAX_COLUMNS) / MAX_COLUMNS
        figure = Figure(figsize=(WIDTH, height))
        title = {"fontsize": 10, "fontweight": "bold", "color": INK, "va": "top"}
        figure.text(LEFT / WIDTH, 1 - 0.1 / height, self.title, **title)
        below = {"fontsize": 7.2, "color": FAINT, "va": "top", "linespacing": 1.15}
        figure.text(LEFT / WIDTH, 1 - (HEAD_HEIGHT - 0.07) / height, "\n".join(config_text), **below)
        for number, grid in enumerate(self.grids):
            row, column = divmod(number, columns)
            low = height - top - (row + 1) * (NAME_HEIGHT + grid_height + BELOW_HEIGHT) + BELOW_HEIGHT
            left = LEFT + column * (grid_width + GAP)
            axes = figure.add_axes((left / WIDTH, low / height, grid_width / WIDTH, grid_height / height))
            self._draw_grid(axes, grid, first=column == 0, last=number + columns >= len(self.grids))
        return figure

    def _draw_grid(self, axes: Axes, grid: HeatmapGrid, *, first: bool, last: bool) -> None:
        """Draw the cells with their texts; axes are labeled in the first column and the last row only."""
        axes.set_xlim(0, len(self.column_labels))
        axes.set_ylim(len(self.row_labels), 0)
        for y, row in enumerate(grid.shares):
            for x, share in enumerate(row):
                axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour_share(share), edgecolor="white", linewidth=0.8))
                text = "\u2013" if share is None else f"{100 * share:.0f}"
                text = grid.cell_texts[y][x] if grid.cell_texts else text
                ink = "white" if share is not None and share >= DARK_SHARE else INK
                axes.text(x + 0.5, y + 0.5, text, fontsize=6.5, color=ink, ha="center", va="center")
        style = {"fontsize": 7, "fontweight": "bold", "color": INK, "va": "bottom", "linespacing": 1.1}
        axes.text(0, 1.03, _wrap_label(grid.label), transform=axes.transAxes, **style)
        for axis, names, label, is_labelled in (
            (axes.xaxis, self.column_labels, self.xlabel, last),
            (axes.yaxis, self.row_labels, self.ylabel, first),
        ):
            axis.set_major_locator(FixedLocator([i + 0.5 for i in range(len(names))]))
            axis.set_major_formatter(FixedFormatter(list(names) if is_labelled else [""] * len(names)))
            if is_labelled:
                axis.set_label_text(label, color=INK, fontsize=7.4)
        axes.tick_params(colors=FAINT, labelcolor=INK, length=0, labelsize=6.8, pad=2)
        axes.spines[:].set_visible(False)


def colour_share(share: float | None) -> tuple[float, float, float]:
    """White for 0, the full color for 1, grey for unknown."""
    if share is None:
        return to_rgb(GRID)
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(COLOURS[0]))
    return red, green, blue


def _wrap_label(label: str) -> str:
    """Wrap a name before options."""
    lines = [""]
    for part in re.split(r"(?=[:|])", label):
        if lines[-1] and len(lines[-1]) + len(part) > MAX_LETTERS:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
