"""The layout of charts with two axes: title and configuration above, then the plot with a lane for exact values.

Lines are labeled at their ends, points beside them. Labels that do not fit there are listed below the plot; those of
points are numbered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .axes import spread_labels
from .canvas import LINE_GAP, PADDING, SWATCH, Box, Chart, measure_head
from .geometry import LANE_GAP, LANE_TEXT, LEADER, TICK_GAP, ChartGeometry, arrange, locate, locate_ends
from .labels import ChartFormat, LabelText, lay_out_label, make_number_label, measure_width, truncate
from .panel_data import Panel
from .point_labels import LabelList, PointLabel, find_leader, place_labels, place_level_text
from .primitives import draw_frame, draw_lines, draw_values

MAX_TRIALS = 4  # to find the height of a scatter plot
LABEL_SHARE = 0.42  # largest width of labels at the right, over the chart's


def make_chart(panel: Panel, form: ChartFormat, bold: Collection[str] = ()) -> Figure:
    """Draw a panel with two axes, whose bounds are known. bold: labels to emphasize."""
    head = measure_head(panel.title, panel.config_text, form) + form.text * LINE_GAP + 6.0
    return (_draw_points if panel.is_scatter_plot else _draw_lines)(panel, form, head, bold)


def _start_chart(panel: Panel, form: ChartFormat, head: float, geometry: ChartGeometry, bold: Collection[str]) -> Chart:
    """Draw all but the labels. head: height above the plot."""
    chart = Chart(form, geometry.plot.high + head)
    chart.write_head(panel.title, panel.config_text)
    draw_values(draw_axes(chart, panel, geometry), panel, bold)
    return chart


def _draw_lines(panel: Panel, form: ChartFormat, head: float, bold: Collection[str]) -> Figure:
    labels = [lay_out_label(line, form, LABEL_SHARE * form.width, max_lines=4) for line in panel.lines]
    listed = LabelList.of((), (), form)
    is_tall = arrange(panel, form, labels).plot.high + head > form.aspect * form.width
    if is_tall or not all(label.is_complete for label in labels):
        numbers = [str(number + 1) for number in range(len(labels))]
        labels = [make_number_label(number, form) for number in numbers]
        listed = LabelList.of(panel.lines, numbers, form)
    geometry = arrange(panel, form, labels, key_height=sum(listed.heights))
    chart = _start_chart(panel, form, head, geometry, bold)
    _label_ends(chart, panel, geometry, labels, bold)
    listed.write(chart, panel.mark_type, bold)
    return chart.figure


def _label_ends(
    chart: Chart, panel: Panel, geometry: ChartGeometry, labels: Sequence[LabelText], bold: Collection[str]
) -> None:
    """Label each line at its last point; labels are moved as little as needed to avoid overlap."""
    plot, points = geometry.plot, locate_ends(panel, geometry)
    low, high = geometry.outer.low, plot.high
    heights = [len(label.lines) * chart.form.line_height / (high - low) for label in labels]
    positions = spread_labels([(y - low) / (high - low) for _, y in points], heights)
    edge = plot.right + 1.5
    ends = [low + position * (high - low) for position in positions]
    # a leader starts after a gap, so that it does not resemble data
    far = edge + LEADER - 3.0
    leaders = [[(min(x + 5.0, edge), y), (edge, y), (far, end)] for (x, y), end in zip(points, ends, strict=True)]
    chart.draw_strokes(leaders, width=0.5, dashes=(0.5, 2.0))
    for line, label, end in zip(panel.lines, labels, ends, strict=True):
        chart.draw_swatch(plot.right + LEADER, end, line.line_style, panel.mark_type)
        chart.write_label(plot.right + LEADER + SWATCH, end, label, bold=line.label in bold)


def _draw_points(
    panel: Panel, form: ChartFormat, head: float, bold: Collection[str], less: float = 0.0, trials: int = MAX_TRIALS
) -> Figure:
    """less: how much lower the plot is, because the list below is long."""
    places = place_labels(panel, form, arrange(panel, form, (), less=less))
    numbered = [(line, place.number) for line, place in zip(panel.lines, places, strict=True) if place.number]
    listed = LabelList.of([line for line, _ in numbered], [number for _, number in numbered], form)
    height = sum(listed.heights)
    geometry = arrange(panel, form, (), key_height=height, less=less)
    excess = geometry.plot.high + head - form.aspect * form.width
    if excess > 0 and trials > 1:
        return _draw_points(panel, form, head, bold, less + excess, trials - 1)
    chart = _start_chart(panel, form, head, geometry, bold)
    write_point_labels(chart, panel, geometry, places, bold, height)
    listed.write(chart, panel.mark_type, bold)
    return chart.figure


def write_point_labels(
    chart: Chart, panel: Panel, geometry: ChartGeometry, places: Sequence[PointLabel], bold: Collection[str], up: float
) -> None:
    """Write the labels of points at their places, moved up, with strokes to points that are not close."""
    for line, place, point in zip(panel.lines, places, locate_ends(panel, geometry), strict=True):
        box = place.box._replace(low=place.box.low + up, high=place.box.high + up)
        chart.write_label(box.left, (box.low + box.high) / 2, place.text, bold=line.label in bold)
        if leader := find_leader(point, box):
            chart.draw_strokes([leader], width=0.5)


def draw_axes(chart: Chart, panel: Panel, geometry: ChartGeometry) -> Axes:
    """Draw the frame, the lane, and the names of both axes, levels and bands."""
    axes, plot, form = chart.add_axes(geometry.plot), geometry.plot, chart.form
    draw_frame(axes, panel, form.small)
    most = form.width - 2 * PADDING
    chart.write(PADDING, plot.high + 5.0 + form.text / 2, truncate(panel.ylabel, form.text, most))
    xlabel = truncate(panel.xlabel, form.text, most)
    room = (most - measure_width(xlabel, form.text)) / 2
    middle = min(max((plot.left + plot.right - form.width) / 2, -room), room) + form.width / 2
    chart.write(middle, geometry.outer.low - TICK_GAP - form.small - form.text / 2, xlabel, ha="center")
    if panel.level is not None:
        place = place_level_text(panel, form, geometry)
        chart.write(place.left, (place.low + place.high) / 2, panel.level_text, faint=True)
    for number, ((low, high), text) in enumerate(zip(panel.bands, panel.band_texts, strict=True)):
        x, _ = locate(panel, geometry, (low + high) / 2, 0.0)
        is_last = number == len(panel.bands) - 1
        x, align = (x + 1.5, "left") if is_last else (x - 1.5, "right")
        chart.write(x, plot.high + 2.0 + form.small / 2, text, faint=True, ha=align)
    if geometry.lane:
        _draw_lane(chart, panel, axes, geometry, geometry.lane)
    return axes


def _draw_lane(chart: Chart, panel: Panel, axes: Axes, geometry: ChartGeometry, lane: Box) -> None:
    """Draw the lane of exact values beyond a break of the axis, and the end of the Pareto front."""
    strip = chart.add_axes(lane)
    draw_frame(strip, panel, chart.form.small)
    if panel.is_dot_plot:
        strip.set(xscale="linear", xlim=(-0.5, 0.5))
        strip.set_xticks([0.0], [LANE_TEXT])
        axes.spines["left"].set_visible(False)
        joint = (lane.right + LANE_GAP / 2, lane.low)
    else:
        strip.set(yscale="linear", ylim=(-0.5, 0.5))
        strip.set_yticks([0.0], [LANE_TEXT])
        axes.tick_params(axis="x", length=0)
        axes.set_xticklabels([])
        axes.spines["bottom"].set_visible(False)
        joint = (lane.left, lane.high + LANE_GAP / 2)
    strip.tick_params(axis="x" if panel.is_dot_plot else "y", length=0)
    draw_lines(strip, panel, panel.split_lane(exact=True))
    across, up = (LANE_GAP / 2, 0.0) if panel.is_dot_plot else (0.0, LANE_GAP / 2)
    edges = [(joint[0] + sign * across, joint[1] + sign * up) for sign in (-1, 1)]
    chart.draw_strokes([[(x - 2.5, y - 2.0), (x + 2.5, y + 2.0)] for x, y in edges])
    if panel.front_end is not None and panel.pareto_front:
        x, y = locate(panel, geometry, *panel.pareto_front[-1])
        end, _ = locate(panel, geometry, panel.front_end, panel.pareto_front[-1][1])
        chart.draw_strokes([[(x, y), (end, y), (end, (lane.low + lane.high) / 2)]], dashes=(3.0, 2.0))
