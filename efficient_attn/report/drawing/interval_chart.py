"""Interval charts: a row for each name, with its measured value, interval and claimed value. Names are on the left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from .axes import compute_linear_limits
from .figures import WIDTH, Picture, make_titled_figure
from .primitives import make_artist_style, style_frame
from .style import COLOURS, INK, LineStyle

LEFT, RIGHT, ROW_HEIGHT = 2.0, 1.2, 0.2  # inches: names, legend, height of a row
BELOW_HEIGHT = 0.52  # inches below the rows
MAX_LETTERS = 28  # maximum length of a name
MEASURED, CLAIMED = LineStyle(COLOURS[0], "o", "-", False), LineStyle(COLOURS[1], "s", "-", True)


@dataclass(frozen=True)
class IntervalRow:
    """A measured value, with its interval and the claimed value if known."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    claimed: float | None = None


@dataclass(frozen=True, kw_only=True)
class IntervalChart(Picture):
    """Rows on a common scale, from top to bottom."""

    rows: tuple[IntervalRow, ...]
    xlabel: str

    @property
    def limits(self) -> tuple[float, float]:
        """x limits that contain all values."""
        parts = [(row.value, row.low, row.high, row.claimed) for row in self.rows]
        return compute_linear_limits(x for part in parts for x in part if x is not None)

    def make_figure(self) -> Figure:
        """The chart as a matplotlib figure."""
        count = len(self.rows)
        axes_width, axes_height = WIDTH - LEFT - RIGHT, ROW_HEIGHT * max(count, 2)
        figure, _ = make_titled_figure(self, axes_height + BELOW_HEIGHT, 0.1)
        height = figure.get_figheight()
        axes = figure.add_axes((LEFT / WIDTH, BELOW_HEIGHT / height, axes_width / WIDTH, axes_height / height))
        axes.set_xlim(*self.limits)
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_xlabel(self.xlabel, color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.set_yticks(range(count), [shorten_label(row.label) for row in self.rows])
        for y, row in enumerate(self.rows):
            if row.low is not None and row.high is not None:
                axes.add_line(Line2D([row.low, row.high], [y, y], color=MEASURED.colour, linewidth=1.1, zorder=2.5))
            for mark, x in ((MEASURED, row.value), (CLAIMED, row.claimed)):
                if x is not None:
                    axes.add_line(Line2D([x], [y], zorder=3, **make_artist_style(mark, "points")))
        has_claims = any(row.claimed is not None for row in self.rows)
        placement: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
        for number, (name, mark) in enumerate([("measured", MEASURED), ("claimed", CLAIMED)][: 1 + has_claims]):
            legend_y = 1 - (number + 0.5) * ROW_HEIGHT / axes_height
            axes.add_artist(
                Line2D([1 + 0.15 / axes_width], [legend_y], **make_artist_style(mark, "points"), **placement)
            )
            axes.text(1 + 0.28 / axes_width, legend_y, name, fontsize=8.7, color=INK, va="center", **placement)
        style_frame(axes)
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.spines["left"].set_visible(False)
        return figure


def shorten_label(label: str) -> str:
    """Truncate a name; the table has all of it."""
    return label if len(label) <= MAX_LETTERS else f"{label[: MAX_LETTERS - 1]}\u2026"
