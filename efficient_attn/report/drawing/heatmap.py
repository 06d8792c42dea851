"""Heatmaps of shares, one grid per variant, for instance by length and depth or by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .figures import WIDTH, Picture, make_titled_figure, wrap_label
from .style import COLOURS, FAINT, GRID, INK

MAX_COLUMNS = 3  # grids in a row
LEFT, GAP, CELL_HEIGHT = 0.62, 0.28, 0.17  # inches: left margin, gap between grids, height of a cell
NAME_HEIGHT, BELOW_HEIGHT = 0.4, 0.34  # inches: name above and axis below each grid
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
        grid_height = CELL_HEIGHT * len(self.row_labels)
        figure, top = make_titled_figure(self, row_count * (NAME_HEIGHT + grid_height + BELOW_HEIGHT), LEFT)
        height = figure.get_figheight()
        grid_width = (WIDTH - LEFT - GAP * MAX_COLUMNS) / MAX_COLUMNS
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
        name = "\n".join(wrap_label(grid.label, lambda text: len(text) <= MAX_LETTERS))
        axes.text(0, 1.03, name, transform=axes.transAxes, **style)
        for axis, names, label, is_labelled in (
            (axes.xaxis, self.column_labels, self.xlabel, last),
            (axes.yaxis, self.row_labels, self.ylabel, first),
        ):
            axis.set_ticks([i + 0.5 for i in range(len(names))], names if is_labelled else [""] * len(names))
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
