"""Where the parts of a chart stand: the plot, the lane of exact values, and points within them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from .axes import compute_fraction, compute_x_limits
from .canvas import LINE_GAP, PADDING, SWATCH, Box
from .labels import ChartFormat, LabelText, measure_width
from .panel_data import Panel
from .primitives import list_y_ticks

TICK_GAP, ROW_GAP = 7.0, 3.0  # points: of a tick and its label; between rows
LEADER = 9.0  # points between the plot and its labels
LANE, LANE_GAP, LANE_TEXT = 17.0, 6.0, "exact"  # points: the lane of exact values, and the break before it
ASPECT, MAX_POINT_ASPECT = 0.52, 1.1  # height of the plot over the chart's width; the largest of a scatter plot
POINT_HEIGHT = 5.0  # points added to a scatter plot for each point

Point: TypeAlias = tuple[float, float]


class ChartGeometry(NamedTuple):
    """Where the plot and its lane stand, in points. The lane is below the plot, or left of it in a dot plot."""

    plot: Box
    lane: Box | None

    @property
    def outer(self) -> Box:
        """The plot with its lane."""
        return self.plot if self.lane is None else self.plot._replace(left=self.lane.left, low=self.lane.low)


def place_lane(panel: Panel, box: Box, form: ChartFormat) -> ChartGeometry:
    """Divide a box into the plot and the lane of exact values, if there are any."""
    if not panel.has_lane:
        return ChartGeometry(box, None)
    if panel.is_dot_plot:
        lane = box._replace(right=box.left + measure_width(LANE_TEXT, form.small) + 2.0)
        return ChartGeometry(box._replace(left=lane.right + LANE_GAP), lane)
    lane = box._replace(high=box.low + LANE)
    return ChartGeometry(box._replace(low=lane.high + LANE_GAP), lane)


def measure_rows(labels: Sequence[LabelText], form: ChartFormat) -> list[float]:
    """The height of each label's row."""
    return [len(label.lines) * form.line_height + ROW_GAP for label in labels]


def arrange(
    panel: Panel, form: ChartFormat, labels: Sequence[LabelText], *, key_height: float = 0.0, less: float = 0.0
) -> ChartGeometry:
    """Arrange the parts of a chart with two axes. labels: at line ends; none of points. key_height: of the list below.
    less: how much lower than usual a scatter plot is, down to its least height."""
    bottom = PADDING + key_height + (form.text * LINE_GAP + 2.0 if panel.xlabel else 0.0) + form.small + TICK_GAP
    tick_texts = [*list_y_ticks(panel).values(), *([LANE_TEXT] if panel.has_lane else [])]
    left = PADDING + max((measure_width(text, form.small) for text in tick_texts), default=0.0) + TICK_GAP
    right, height, lane_height = form.width - PADDING, ASPECT * form.width, LANE + LANE_GAP if panel.has_lane else 0.0
    if panel.is_scatter_plot:
        right -= max(4.0, measure_width(panel.ticks[max(panel.ticks)], form.small) / 2)
        height = max(min(height + POINT_HEIGHT * len(panel.lines), MAX_POINT_ASPECT * form.width) - less, height)
    else:
        right -= max((label.width for label in labels), default=0.0) + SWATCH + LEADER
        height = max(height, sum(measure_rows(labels, form)) + 4.0 - lane_height)
    return place_lane(panel, Box(left, bottom, right, bottom + lane_height + height), form)


def locate(panel: Panel, geometry: ChartGeometry, x: float, y: float) -> Point:
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


def locate_ends(panel: Panel, geometry: ChartGeometry) -> list[Point]:
    """The last point of each line."""
    return [locate(panel, geometry, line.x[-1], line.y[-1]) for line in panel.lines]
