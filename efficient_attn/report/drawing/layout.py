"""The layout of charts: title and configuration above, then the plot with a lane for exact values, and direct labels.

Lines are labeled at their ends, points beside them, and rows of dot plots on the left. Labels that do not fit there are
listed below the plot; those of points are numbered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from .axes import spread_labels
from .canvas import PADDING, SWATCH, Chart, measure_head
from .geometry import LANE_GAP, LANE_TEXT, LEADER, TICK_GAP, ChartGeometry, arrange, locate, locate_ends, space_rows
from .labels import ChartFormat, LabelText, lay_out_label, make_number_label, measure_width
from .panel_data import PanelData
from .point_labels import LabelList, PointLabel, place_labels
from .primitives import draw_frame, draw_lines, draw_values, style_frame

MAX_TRIALS = 4  # to find the height of a scatter plot
LABEL_SHARE, ROW_LABEL_SHARE = 0.42, 0.46  # largest width of labels at the right, and of rows, over the chart's


def make_chart(panel: PanelData, form: ChartFormat, *, titled: bool = True, bold: Collection[str] = ()) -> Figure:
    """Draw a panel, whose bounds are known. titled: whether the title is drawn. bold: labels to emphasize."""
    title = panel.title if titled else ""
    plan = _plan(panel, form, measure_head(title, panel.config_text, form))
    panel, geometry = plan.panel, plan.geometry
    chart = Chart(form, geometry.height)
    chart.write_head(title, panel.config_text)
    draw_values(draw_axes(chart, panel, geometry), panel, bold)
    if panel.is_dot_plot:
        for line, label, (_, y) in zip(panel.lines, plan.labels, locate_ends(panel, geometry), strict=True):
            chart.write_label(PADDING, y, label, bold=line.label in bold)
    elif not panel.is_scatter_plot:
        _label_ends(chart, panel, geometry, plan.labels, bold)
    for line, place in zip(panel.lines, plan.places, strict=False):
        place.write(chart, plan.key.height, bold=line.label in bold)
    plan.key.write(chart, panel, plan.numbers, bold)
    return chart.figure


class _Plan(NamedTuple):
    """What stands where. labels: at line ends or in rows. places: of the labels beside points. key: the list below,
    with the numbers of its lines."""

    panel: PanelData
    geometry: ChartGeometry
    labels: Sequence[LabelText]
    places: Sequence[PointLabel]
    key: LabelList
    numbers: Sequence[str]


def _plan(panel: PanelData, form: ChartFormat, head: float) -> _Plan:
    if panel.is_scatter_plot:
        return _plan_points(panel, form, head)
    most, share = form.aspect * form.width, ROW_LABEL_SHARE if panel.is_dot_plot else LABEL_SHARE
    labels = [lay_out_label(line, form, share * form.width, max_lines=4) for line in panel.lines]
    too_tall = arrange(panel, form, labels, head).height > most
    numbers = [""] * len(labels)
    if panel.is_dot_plot and too_tall:
        labels = [lay_out_label(line, form, share * form.width, max_lines=2) for line in panel.lines]
    elif not panel.is_dot_plot and (too_tall or not all(label.complete for label in labels)):
        numbers = [str(number + 1) for number in range(len(labels))]
        labels = [make_number_label(number, form) for number in numbers]
    key = LabelList.of([i for i, number in enumerate(numbers) if number], panel, form)
    geometry = arrange(panel, form, labels, head, key_height=key.height)
    spaced = space_rows(panel, labels, form) if panel.is_dot_plot else panel
    return _Plan(spaced, geometry, labels, (), key, numbers)


def _plan_points(
    panel: PanelData, form: ChartFormat, head: float, less: float = 0.0, trials: int = MAX_TRIALS
) -> _Plan:
    """Place labels beside points. less: how much lower the plot is, because the list below it is long."""
    places = place_labels(panel, form, arrange(panel, form, (), head, less=less))
    key = LabelList.of([i for i, place in enumerate(places) if place.number], panel, form)
    geometry = arrange(panel, form, (), head, key_height=key.height, less=less)
    excess = geometry.height - form.aspect * form.width
    if excess > 0 and trials > 1:
        return _plan_points(panel, form, head, less + excess, trials - 1)
    return _Plan(panel, geometry, (), places, key, [place.number for place in places])


# -- axes ----------------------------------------------------------------------------------------------------------


def draw_axes(chart: Chart, panel: PanelData, geometry: ChartGeometry) -> Axes:
    """Draw the frame, the lane, and the names of both axes, levels and bands."""
    axes, plot, lane = chart.add_axes(geometry.plot), geometry.plot, geometry.lane
    draw_frame(axes, panel, chart.form.small)
    chart.write(PADDING, plot.high + 5.0 + chart.form.text / 2, panel.ylabel)
    low = min(lane.low, plot.low) if lane else plot.low
    room = (chart.form.width - 2 * PADDING - measure_width(panel.xlabel, chart.form.text)) / 2
    middle = min(max((plot.left + plot.right - chart.form.width) / 2, -room), room) + chart.form.width / 2
    chart.write(middle, low - TICK_GAP - chart.form.small - chart.form.text / 2, panel.xlabel, ha="center")
    if panel.level is not None:
        _, y = locate(panel, geometry, max(panel.ticks), panel.level)
        chart.write(plot.left + 3.0, y + 0.6 * chart.form.small, panel.level_text, faint=True)
    for number, ((low, high), text) in enumerate(zip(panel.bands, panel.band_texts, strict=True)):
        x, _ = locate(panel, geometry, (low + high) / 2, 0.0)
        is_last = number == len(panel.bands) - 1
        x, align = (x + 1.5, "left") if is_last else (x - 1.5, "right")
        chart.write(x, plot.high + 2.0 + chart.form.small / 2, text, faint=True, ha=align)
    if lane:
        _draw_lane(chart, panel, axes, geometry)
    return axes


def _draw_lane(chart: Chart, panel: PanelData, axes: Axes, geometry: ChartGeometry) -> None:
    """Draw the lane of exact values beyond a break of the axis, and the end of the Pareto front."""
    lane = geometry.lane
    assert lane is not None
    strip = chart.add_axes(lane)
    if panel.is_dot_plot:
        strip.set(xlim=(-0.5, 0.5), ylim=axes.get_ylim(), yticks=axes.get_yticks(), xticks=[0.0])
        strip.set_xticklabels([LANE_TEXT])
        axes.spines["left"].set_visible(False)
        joint = (lane.right + LANE_GAP / 2, lane.low)
    else:
        strip.set(ylim=(-0.5, 0.5), xscale=axes.get_xscale(), xlim=axes.get_xlim(), yticks=[0.0])
        strip.set_yticklabels([LANE_TEXT])
        strip.set_xticks(axes.get_xticks(), [text.get_text() for text in axes.get_xticklabels()])
        strip.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="x", length=0)
        axes.set_xticklabels([])
        axes.spines["bottom"].set_visible(False)
        joint = (lane.left, lane.high + LANE_GAP / 2)
    style_frame(strip, chart.form.small)
    strip.tick_params(axis="y" if not panel.is_dot_plot else "x", length=0)
    draw_lines(strip, panel, panel.split_lane(exact=True))
    shift = (LANE_GAP / 2, 0.0) if panel.is_dot_plot else (0.0, LANE_GAP / 2)
    marks = []
    for sign in (-1, 1):
        x, y = joint[0] + sign * shift[0], joint[1] + sign * shift[1]
        marks.append([(x - 2.5, y - 2.0), (x + 2.5, y + 2.0)])
    chart.draw_strokes(marks)
    if panel.front_end is not None and panel.pareto_front:
        x, y = locate(panel, geometry, *panel.pareto_front[-1])
        end, _ = locate(panel, geometry, panel.front_end, panel.pareto_front[-1][1])
        chart.draw_strokes([[(x, y), (end, y), (end, (lane.low + lane.high) / 2)]], dashes=(3.0, 2.0))


# -- labels --------------------------------------------------------------------------------------------------------


def _label_ends(
    chart: Chart, panel: PanelData, geometry: ChartGeometry, labels: Sequence[LabelText], bold: Collection[str]
) -> None:
    """Label each line at its last point; labels are moved as little as needed to avoid overlap."""
    plot, points = geometry.plot, locate_ends(panel, geometry)
    low, high = (geometry.lane or plot).low, plot.high
    heights = [len(label.lines) * chart.form.line_height / (high - low) for label in labels]
    positions = spread_labels([(y - low) / (high - low) for _, y in points], heights)
    ys = [low + position * (high - low) for position in positions]
    edge = plot.right + 1.5
    # a leader starts after a gap, so that it does not resemble data
    leaders = [
        [(min(x + 5.0, edge), y), (edge, y), (edge + LEADER - 3.0, end)] for (x, y), end in zip(points, ys, strict=True)
    ]
    chart.draw_strokes(leaders, width=0.5, dashes=(0.5, 2.0))
    for line, label, y in zip(panel.lines, labels, ys, strict=True):
        chart.draw_swatch(plot.right + LEADER, y, line, panel)
        chart.write_label(plot.right + LEADER + SWATCH, y, label, bold=line.label in bold)
