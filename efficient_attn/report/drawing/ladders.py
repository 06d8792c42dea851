"""Ladders: a rung for each name, with what was measured of it, its interval, and what is claimed. Names stand at the
left, so that many of them can be read."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator

from .axes import even_limits
from .figures import PLACE_LETTERS, PLACE_LINE, WIDTH, Picture
from .style import COLOURS, FAINT, GRID, INK

LEFT, RIGHT, RUNG = 2.0, 1.2, 0.2  # inches: names at the left, the two marks' names at the right, a rung's height
HEAD, BELOW = 0.36, 0.52  # above and below all rungs
LETTERS = 28  # of a name at the left, at most
MARKS = (("measured", COLOURS[0], "o", COLOURS[0]), ("claimed", COLOURS[1], "s", "none"))


@dataclass(frozen=True)
class Rung:
    """One name's value; its interval and what is claimed where they are known."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    claimed: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ladder(Picture):
    """Rungs, the first one at the top, on one scale."""

    rungs: tuple[Rung, ...]
    xlabel: str

    @property
    def limits(self) -> tuple[float, float]:
        """Between which all that is drawn lies."""
        parts = [(r.value, r.low, r.high, r.claimed) for r in self.rungs]
        return even_limits(x for part in parts for x in part if x is not None)

    def make_figure(self) -> Figure:
        place, count = textwrap.wrap(self.place, PLACE_LETTERS), len(self.rungs)
        top, tall = HEAD + PLACE_LINE * len(place), RUNG * max(count, 2)
        height = top + tall + BELOW
        figure = Figure(figsize=(WIDTH, height))
        title = {"fontsize": 10, "fontweight": "bold", "color": INK, "va": "top"}
        figure.text(0.1 / WIDTH, 1 - 0.1 / height, self.title, **title)
        below = {"fontsize": 7.2, "color": FAINT, "va": "top", "linespacing": 1.15}
        figure.text(0.1 / WIDTH, 1 - (HEAD - 0.07) / height, "\n".join(place), **below)
        wide = WIDTH - LEFT - RIGHT
        axes = figure.add_axes((LEFT / WIDTH, BELOW / height, wide / WIDTH, tall / height))
        axes.set_xlim(*self.limits)
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_xlabel(self.xlabel, color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_locator(FixedLocator(range(count)))
        axes.yaxis.set_major_formatter(FixedFormatter([shorten(rung.label) for rung in self.rungs]))
        for y, rung in enumerate(self.rungs):
            if rung.low is not None and rung.high is not None:
                axes.add_line(Line2D([rung.low, rung.high], [y, y], color=MARKS[0][1], linewidth=1.1, zorder=2.5))
            for (_, colour, marker, face), x in zip(MARKS, (rung.value, rung.claimed), strict=True):
                if x is not None:
                    axes.add_line(Line2D([x], [y], zorder=3, **_pen(colour, marker, face)))
        kinds = MARKS if any(rung.claimed is not None for rung in self.rungs) else MARKS[:1]
        for number, (name, colour, marker, face) in enumerate(kinds):
            at = 1 - (number + 0.5) * RUNG / tall
            free = {"transform": axes.transAxes, "clip_on": False}
            axes.add_artist(Line2D([1 + 0.15 / wide], [at], **_pen(colour, marker, face), **free))
            axes.text(1 + 0.28 / wide, at, name, transform=axes.transAxes, fontsize=8.7, color=INK, va="center")
        axes.grid(True, color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(colors=FAINT, labelcolor=INK, length=3)
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        return figure


def shorten(label: str) -> str:
    """A name that there is room for; the table has the whole."""
    return label if len(label) <= LETTERS else f"{label[: LETTERS - 1]}\u2026"


def _pen(colour: str, marker: str, face: str) -> dict[str, Any]:
    look = {"color": colour, "linestyle": "none", "marker": marker, "markersize": 4.6}
    return look | {"markerfacecolor": face, "markeredgecolor": colour, "markeredgewidth": 1.1}
