"""Drawing primitives: scales and grid, intervals, lines, points and bars."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from ...results.section import PlotKind
from .axes import compute_x_limits, make_y_ticks, thin_ticks
from .panel_data import BARS_WIDTH, Line, Panel
from .style import FAINT, GRID, INK, LineStyle

BOLD_LINE_WIDTH = 2.4  # points
POINTS_PER_LETTER_SIZE = 21.5  # points of axes over a letter's size at which labels of ticks just fit
GRID_WIDTH, AXIS_WIDTH, LEVEL_WIDTH, INTERVAL_WIDTH = 0.7, 0.8, 0.9, 1.1  # points


def draw_values(axes: Axes, panel: Panel, bold: Collection[str] = ()) -> None:
    """Draw levels, bands, intervals, the Pareto front and all lines, after `draw_frame`. bold: labels of thicker
    lines."""
    if panel.level is not None:
        axes.axhline(panel.level, color=INK, linewidth=LEVEL_WIDTH, zorder=1.5)
    if panel.level_x is not None:
        axes.axvline(panel.level_x, color=INK, linewidth=LEVEL_WIDTH, zorder=1.5)
    for low, high in panel.bands:
        axes.axvspan(low, high, facecolor=FAINT, edgecolor=FAINT, alpha=0.25, linewidth=1.2, zorder=1.2)
    lines = panel.split_lane(exact=False)
    if len(panel.pareto_front) > 1:
        axes.add_line(Line2D(*zip(*panel.pareto_front, strict=True), color=FAINT, linewidth=AXIS_WIDTH, zorder=2.2))
    draw_lines(axes, panel, lines, bold)
    _draw_clipped(axes, panel, lines)


def draw_lines(axes: Axes, panel: Panel, lines: Sequence[Line], bold: Collection[str] = ()) -> None:
    """Draw intervals and values of these lines."""
    _draw_intervals(axes, panel, lines)
    for line in lines:
        style = make_artist_style(line.line_style, panel.mark_type)
        if panel.mark_type == "bars":
            edge = {"edgecolor": line.line_style.colour, "linewidth": 1.1, "zorder": 3}
            axes.bar(line.x, line.y, 0.92 * BARS_WIDTH / len(panel.lines), color=style["markerfacecolor"], **edge)
        elif len(line.x):
            stroke: dict[str, Any] = {"zorder": 3, "markevery": _marker_interval(line)}
            stroke |= {"linewidth": BOLD_LINE_WIDTH, "zorder": 3.5} if line.label in bold else {}
            axes.add_line(Line2D(line.x, line.y, **style | stroke))
        if line.reference is not None:
            hollow = make_artist_style(line.line_style._replace(marker="s", hollow=True), "points")
            axes.add_line(Line2D([line.reference], line.y, zorder=2.8, **hollow))


def draw_frame(axes: Axes, panel: Panel, small: float) -> None:
    """Draw scales, ticks, a light grid, and axes on the left and at the bottom only. small: size of tick labels."""
    assert panel.bounds is not None
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.log_y:
        axes.set_yscale("log")
    x_range = compute_x_limits(panel.ticks, log=panel.log_x, margin=panel.margin)
    axes.set(xlim=x_range, ylim=panel.bounds)
    letter_scale = small * POINTS_PER_LETTER_SIZE / axes.get_window_extent().width
    x_ticks = thin_ticks(panel.ticks, x_range, log=panel.log_x, letter_scale=letter_scale)
    for axis, ticks in ((axes.xaxis, x_ticks), (axes.yaxis, list_y_ticks(panel))):
        axis.set_ticks(list(ticks), list(ticks.values()))
        axis.set_minor_locator(NullLocator())
    axes.set_facecolor("none")
    axes.grid(True, color=GRID, linewidth=GRID_WIDTH, linestyle="-")
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, labelcolor=INK, length=3, labelsize=small, width=AXIS_WIDTH, pad=2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=FAINT, linewidth=AXIS_WIDTH)


def list_y_ticks(panel: Panel) -> dict[float, str]:
    """The ticks of y; none for a dot plot."""
    assert panel.bounds is not None
    return {} if panel.is_dot_plot else make_y_ticks(panel.unit, *panel.bounds, log=panel.log_y)


def _draw_intervals(axes: Axes, panel: Panel, lines: Sequence[Line]) -> None:
    """Draw intervals as error bars, for lines as bands as well; one artist for each kind, which is faster."""
    bands, bars, fills, colours = [], [], [], []
    for line in lines:
        if line.low and line.high:
            ends = list(zip(line.x, line.low, line.high, strict=True))
            if panel.mark_type == "line":
                bands.append([(x, low) for x, low, _ in ends] + [(x, high) for x, _, high in reversed(ends)])
                fills.append(line.line_style.colour)
            sparse_ends = ends[:: _marker_interval(line)]
            bars += [[(x, low), (x, high)] for x, low, high in sparse_ends]
            colours += [line.line_style.colour] * len(sparse_ends)
        if line.left and line.right:
            bars += [[(low, y), (high, y)] for low, high, y in zip(line.left, line.right, line.y, strict=True)]
            colours += [line.line_style.colour] * len(line.y)
    axes.add_collection(PolyCollection(bands, facecolors=fills, alpha=0.16, linewidths=0, zorder=2), autolim=False)
    axes.add_collection(LineCollection(bars, colors=colours, linewidths=INTERVAL_WIDTH, zorder=2.5), autolim=False)


def _marker_interval(line: Line) -> int:
    """Interval between markers, so that a line has at most 24."""
    return math.ceil(len(line.x) / 24)


def _draw_clipped(axes: Axes, panel: Panel, lines: Sequence[Line]) -> None:
    """Draw a triangle at the edge for each point beyond it."""
    assert panel.bounds is not None
    low, high = panel.bounds
    for line in lines:
        style = make_artist_style(line.line_style) | {"markersize": 6.5, "linestyle": "none", "zorder": 4}
        above = [x for x, y in zip(line.x, line.y, strict=True) if y > high]
        below = [x for x, y in zip(line.x, line.y, strict=True) if y < low]
        for marker, edge, x in (("^", high, above), ("v", low, below)):
            style["marker"] = marker
            if x:
                axes.add_artist(Line2D(x, [edge] * len(x), clip_on=False, **style))


def make_artist_style(line_style: LineStyle, mark_type: PlotKind = "line") -> dict[str, Any]:
    """A line's style as keyword arguments of matplotlib."""
    return {
        "color": line_style.colour,
        "linestyle": line_style.dashes if mark_type == "line" else "none",
        "linewidth": 1.5,
        "marker": "s" if mark_type == "bars" else line_style.marker or "None",
        "markersize": 4.6,
        "markerfacecolor": "white" if line_style.hollow else line_style.colour,
        "markeredgecolor": line_style.colour,
        "markeredgewidth": 1.1,
    }
