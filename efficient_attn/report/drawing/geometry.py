"""Where the parts of a chart stand: the plot, the lane of exact values, and points within them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from .axes import compute_fraction, compute_x_limits
from .canvas import LINE_GAP, PADDING, SWATCH
from .labels import Box, ChartFormat, LabelText, measure_width
from .panel_data import PanelData
from .primitives import list_y_ticks

TICK_GAP, ROW_GAP = 7.0, 3.0  # points: of a tick and its label; between rows
LEADER = 9.0  # points between the plot and its labels
LANE, LANE_GAP, LANE_TEXT = 17.0, 6.0, "exact"  # points: the lane of exact values, and the break before it
ASPECT, MAX_POINT_ASPECT = 0.52, 1.1  # height of the plot over the chart's width; the largest of a scatter plot
POINT_HEIGHT = 5.0  # points added to a scatter plot for each point

Point: TypeAlias = tuple[float, float]


class ChartGeometry(NamedTuple):
    """Where the parts of a chart stand, in points. The lane is below the plot, or left of it in a dot plot."""

    height: float
    plot: Box
    lane: Box | None


def arrange(
    panel: PanelData,
    form: ChartFormat,
    labels: Sequence[LabelText],
    head: float,
    *,
    key_height: float = 0.0,
    less: float = 0.0,
) -> ChartGeometry:
    """Arrange the parts of a chart. labels: at line ends or in rows; none of points. head, key_height: of the texts
    above and below. less: how much lower than usual a scatter plot is, down to its least height."""
    widest = max((label.width for label in labels), default=0.0)
    heights = _list_heights(labels, form)
    bottom = PADDING + key_height + (form.text * LINE_GAP + 2.0 if panel.xlabel else 0.0) + form.small + TICK_GAP
    last_tick = panel.ticks[max(panel.ticks)]
    right = form.width - PADDING - max(4.0, measure_width(last_tick, form.small) / 2)
    if panel.is_dot_plot:
        top, left = bottom + sum(heights), PADDING + widest + TICK_GAP
        height = top + 4.0 + head + (form.small + 2.0 if panel.band_texts else 0.0)
        if not panel.has_lane:
            return ChartGeometry(height, Box(left, bottom, right, top), None)
        lane = Box(left, bottom, left + measure_width(LANE_TEXT, form.small) + 2.0, top)
        return ChartGeometry(height, Box(lane.right + LANE_GAP, bottom, right, top), lane)
    tick_texts = [*list_y_ticks(panel).values(), *([LANE_TEXT] if panel.has_lane else [])]
    left = PADDING + max((measure_width(text, form.small) for text in tick_texts), default=0.0) + TICK_GAP
    lane_height, plot_height = LANE + LANE_GAP if panel.has_lane else 0.0, ASPECT * form.width
    if not panel.is_scatter_plot:
        right = form.width - PADDING - widest - SWATCH - LEADER
        plot_height = max(plot_height, sum(heights) + 4.0 - lane_height)
    else:
        usual = min(plot_height + POINT_HEIGHT * len(panel.lines), MAX_POINT_ASPECT * form.width)
        plot_height = max(usual - less, plot_height)
    plot = Box(left, bottom + lane_height, right, bottom + lane_height + plot_height)
    lane = Box(left, bottom, right, bottom + LANE) if panel.has_lane else None
    return ChartGeometry(plot.high + form.text * LINE_GAP + 6.0 + head, plot, lane)


def _list_heights(labels: Sequence[LabelText], form: ChartFormat) -> list[float]:
    return [len(label.lines) * form.line_height + ROW_GAP for label in labels]


def space_rows(panel: PanelData, labels: Sequence[LabelText], form: ChartFormat) -> PanelData:
    """A dot plot whose rows, from bottom to top, are as high as their labels."""
    tops = list(itertools.accumulate(_list_heights(labels, form)))
    middles = ((low + high) / 2 for low, high in itertools.pairwise([0.0, *tops]))
    lines = tuple(replace(line, y=[middle]) for line, middle in zip(panel.lines, middles, strict=True))
    return replace(panel, lines=lines, bounds=(0.0, tops[-1]))


def locate(panel: PanelData, geometry: ChartGeometry, x: float, y: float) -> Point:
    """A point in the plot or the lane; values beyond the axes are at their edge."""
    assert panel.bounds is not None
    limits, exact = compute_x_limits(panel.ticks, log=panel.log_x, margin=panel.margin), panel.is_exact(x, y)
    along = 0.5 if exact and panel.is_dot_plot else _clip(x, limits, log=panel.log_x)
    up = 0.5 if exact and not panel.is_dot_plot else _clip(y, panel.bounds, log=panel.log_y)
    box = geometry.lane if exact and geometry.lane else geometry.plot
    return box.left + along * (box.right - box.left), box.low + up * (box.high - box.low)


def _clip(value: float, limits: Point, *, log: bool) -> float:
    """Position between the limits, from 0 to 1; 0 for a missing value."""
    return 0.0 if math.isnan(value) else compute_fraction(min(max(value, limits[0]), limits[1]), *limits, log=log)


def locate_ends(panel: PanelData, geometry: ChartGeometry) -> list[Point]:
    """The last point of each line."""
    return [locate(panel, geometry, line.x[-1], line.y[-1]) for line in panel.lines]
