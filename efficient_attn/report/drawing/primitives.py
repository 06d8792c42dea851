"""Drawing primitives: scales and grid, intervals, lines, points and bars."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from ...results.section import PlotKind
from .axes import compute_fraction, compute_x_limits, make_y_ticks, spread_labels, thin_ticks
from .panel_data import Line, PanelData
from .style import FAINT, GRID, INK, LineStyle

LEADER_GAP = 0.02  # of the axes: between the last point of a line and its leader, which must not resemble data
BOLD_LINE_WIDTH = 2.4  # points
LEADERS_ID = "threads"  # id of the leaders in an SVG


def draw_values(axes: Axes, panel: PanelData, bold: Collection[str] = ()) -> None:
    """Draw levels, intervals, the Pareto front and all lines, after `draw_frame`. bold: labels of thicker lines."""
    draw_levels(axes, panel)
    _draw_intervals(axes, panel)
    if len(panel.pareto_front) > 1:
        axes.add_line(Line2D(*zip(*panel.pareto_front, strict=True), color=FAINT, linewidth=0.8, zorder=2.2))
    for line in panel.lines:
        if panel.mark_type == "bars":
            _draw_bars(axes, line, compute_bar_width(len(panel.lines)))
        else:
            stroke: dict[str, Any] = {
                "zorder": 3,
                "markevery": _marker_interval(line),
                **make_artist_style(line.line_style, panel.mark_type),
            }
            stroke |= {"linewidth": BOLD_LINE_WIDTH, "zorder": 3.5} if line.label in bold else {}
            axes.add_line(Line2D(line.x, line.y, **stroke))
        if line.reference is not None:
            hollow = make_artist_style(line.line_style._replace(marker="s", hollow=True), "points")
            axes.add_line(Line2D([line.reference], line.y, zorder=2.8, **hollow))
    _draw_clipped(axes, panel)


def draw_frame(axes: Axes, panel: PanelData) -> None:
    """Draw axis labels, scales, ticks and grid."""
    assert panel.bounds is not None
    axes.set_xlabel(panel.xlabel, color=INK)
    axes.set_ylabel(panel.ylabel, color=INK)
    if panel.log_x:
        axes.set_xscale("log", base=2)
    if panel.log_y:
        axes.set_yscale("log")
    x_range = compute_x_limits(panel.ticks, log=panel.log_x, margin=panel.margin)
    axes.set_xlim(*x_range)
    axes.set_ylim(*panel.bounds)
    ticks = make_y_ticks(panel.unit, *panel.bounds, log=panel.log_y) if panel.ylabel else {}
    for axis, axis_ticks in ((axes.xaxis, thin_ticks(panel.ticks, x_range, log=panel.log_x)), (axes.yaxis, ticks)):
        axis.set_ticks(list(axis_ticks), list(axis_ticks.values()))
        axis.set_minor_locator(NullLocator())
    style_frame(axes)


def style_frame(axes: Axes) -> None:
    """Draw a light grid below the values, and axes on the left and at the bottom only."""
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, labelcolor=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def _draw_intervals(axes: Axes, panel: PanelData) -> None:
    """Draw intervals as error bars, for lines as bands as well; one artist for each kind, which is faster."""
    bands, bars, fills, colours = [], [], [], []
    for line in panel.lines:
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
    axes.add_collection(LineCollection(bars, colors=colours, linewidths=1.1, zorder=2.5), autolim=False)


def _marker_interval(line: Line) -> int:
    """Interval between markers, so that a line has at most 24."""
    return math.ceil(len(line.x) / 24)


def _draw_bars(axes: Axes, line: Line, width: float) -> None:
    face = "white" if line.line_style.hollow else line.line_style.colour
    for x, y in zip(line.x, line.y, strict=True):
        line_style = {"facecolor": face, "edgecolor": line.line_style.colour, "linewidth": 1.1, "zorder": 3}
        axes.add_patch(Rectangle((x - 0.46 * width, 0.0), 0.92 * width, y, **line_style))


def _draw_clipped(axes: Axes, panel: PanelData) -> None:
    """Draw a triangle at the edge for each point beyond it."""
    assert panel.bounds is not None
    low, high = panel.bounds
    for line in panel.lines:
        for marker, edge, x in (
            ("^", high, [x for x, y in zip(line.x, line.y, strict=True) if y > high]),
            ("v", low, [x for x, y in zip(line.x, line.y, strict=True) if y < low]),
        ):
            style = {**make_artist_style(line.line_style), "marker": marker, "markersize": 6.5, "linestyle": "none"}
            if x:
                axes.add_artist(Line2D(x, [edge] * len(x), clip_on=False, zorder=4, **style))


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


def compute_bar_width(count: int) -> float:
    """Width of a bar in a group of this many."""
    return 0.8 / count


def label_line_ends(axes: Axes, panel: PanelData, labels: Sequence[str], step: float, size: float = 8.7) -> None:
    """Label each line at its last point; labels are moved as little as needed to avoid overlap.

    step: height of a line of text relative to the axes. A dotted grey leader connects a label to its line.
    """
    assert panel.bounds is not None
    limits = compute_x_limits(panel.ticks, log=panel.log_x, margin=panel.margin)
    x_fractions = [compute_fraction(line.x[-1], *limits, log=panel.log_x) for line in panel.lines]
    y_fractions = [compute_fraction(line.y[-1], *panel.bounds, log=panel.log_y) for line in panel.lines]
    label_positions = spread_labels(y_fractions, [(text.count("\n") + 1) * step for text in labels])
    placement = {"transform": axes.transAxes, "clip_on": False}
    leaders = [
        [(x + LEADER_GAP, y), (1.015, y), (1.04, label_y)]
        for x, y, label_y in zip(x_fractions, y_fractions, label_positions, strict=True)
    ]
    axes.add_artist(
        LineCollection(leaders, colors=FAINT, linewidths=0.5, linestyles=(0, (1, 4)), gid=LEADERS_ID, **placement)
    )
    for line, text, label_y in zip(panel.lines, labels, label_positions, strict=True):
        axes.add_artist(
            Line2D(
                [1.045, 1.08, 1.115],
                [label_y, label_y, label_y],
                markevery=[1],
                **make_artist_style(line.line_style, panel.mark_type),
                **placement,
            )
        )
        style = {"fontsize": size, "color": INK, "va": "center", "linespacing": 1.12}
        axes.text(1.135, label_y, text, transform=axes.transAxes, **style)


def draw_levels(axes: Axes, panel: PanelData) -> None:
    """Draw the levels of y and x as lines, and x ranges as bands in the background."""
    if panel.level is not None:
        axes.axhline(panel.level, color=INK, linewidth=0.9, zorder=1.5)
    if panel.level_x is not None:
        axes.axvline(panel.level_x, color=INK, linewidth=0.9, zorder=1.5)
    for low, high in panel.bands:
        axes.axvspan(low, high, facecolor=FAINT, edgecolor=FAINT, alpha=0.25, linewidth=1.2, zorder=1.2)
