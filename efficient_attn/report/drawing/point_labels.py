"""Labels beside points, placed such that nothing overlaps, and the list of those that do not fit there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...results.section import PlotKind
from .canvas import PADDING, SWATCH, Box, Chart
from .geometry import ChartGeometry, Point, locate, locate_ends
from .labels import ChartFormat, LabelText, lay_out_label, make_number_label, measure_width
from .panel_data import Line, Panel

KEY_GAP, NUMBER_WIDTH = 8.0, 13.0  # points: between columns of a list; of a number in it
MARKER_RADIUS = 3.2  # points, of what a label must not cover
LABEL_HEIGHT = 0.92  # of a label's lines that must be free
LABEL_SHARES = 0.6, 0.45, 0.34  # widths of a label over the chart's, preferred first
GAPS = 5.0, 11.0, 20.0, 32.0, 48.0, 66.0, 90.0  # points: distances of a label from its point, preferred first
DIRECTIONS = (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)  # of a label: right, up
CROWDED = 30.0  # points: distance of points that compete for places
LEADER_LENGTH, LEADER_START = 9.0, 4.5  # points: a label farther from its point has a stroke; where that starts


class PointLabel(NamedTuple):
    """A label and its place. number: if the label is a number, explained in the list."""

    text: LabelText
    box: Box
    number: str = ""


def place_labels(panel: Panel, form: ChartFormat, geometry: ChartGeometry) -> list[PointLabel]:
    """Place labels beside points: on one line, on several, or else as numbers."""
    points = locate_ends(panel, geometry)
    strokes = [*_list_front_strokes(panel, geometry)]
    for line, at in zip(panel.lines, points, strict=True):
        strokes += _list_intervals(panel, geometry, line, at)

    def place_in_order(order: Iterable[int], short: Collection[int] = ()) -> list[PointLabel | None]:
        occupied = [_surround(point, MARKER_RADIUS) for point in points]  # by markers, texts and leaders
        occupied += [place_level_text(panel, form, geometry)] if panel.level_text else []
        placed: list[PointLabel | None] = [None] * len(points)
        for i in order:
            line, plot = panel.lines[i], geometry.plot
            low = geometry.outer.low if panel.is_exact(line.x[0], line.y[0]) else plot.low
            room = Box(plot.left, low, form.width - 1.0, plot.high + 4.0)
            texts = [lay_out_label(line, form, share * form.width) for share in (() if i in short else LABEL_SHARES)]
            forms = [*((text, "") for text in texts if text.is_complete), (make_number_label("88", form), "88")]
            barriers = occupied, occupied[len(points) :]  # of leaders, if need be without markers
            places = (_find_place(forms, points[i], form, room, [*strokes, *occupied], x) for x in barriers)
            placed[i] = place = next(filter(None, places), None) if line.label else None
            occupied += [place.box, *_sample_strokes(find_leader(points[i], place.box))] if place else []
        return placed

    neighbours = [sum(math.dist(point, other) < CROWDED for other in points) for point in points]
    orders = [sorted(range(len(points)), key=lambda i: sign * neighbours[i]) for sign in (1, -1)]
    placed = min(map(place_in_order, orders), key=lambda places: sum(not x or bool(x.number) for x in places))
    if lost := [i for i, line in enumerate(panel.lines) if line.label and not placed[i]]:  # numbers leave more room
        near = [i for i, at in enumerate(points) if any(math.dist(at, points[other]) < CROWDED for other in lost)]
        placed = place_in_order(dict.fromkeys([*lost, *near, *orders[1]]), near)
    labels, numbers, height = [], itertools.count(1), LABEL_HEIGHT * form.line_height
    for line, (x, y), place in zip(panel.lines, points, placed, strict=True):
        if place is None or place.number:
            number = str(next(numbers)) if line.label else ""
            text = make_number_label(number, form)
            low = y + MARKER_RADIUS - height / 2
            box = place.box if place else Box(x + MARKER_RADIUS, low, 0.0, low + height)
            place = PointLabel(text, box._replace(right=box.left + text.width), number)
        labels.append(place)
    return labels


def _find_place(
    forms: Iterable[tuple[LabelText, str]],
    point: Point,
    form: ChartFormat,
    room: Box,
    occupied: Sequence[Box],
    barriers: Sequence[Box],
) -> PointLabel | None:
    """The first form of a label, with its number if it is one, that fits in the room; None if there is no free place.
    occupied: must not be covered by the label; barriers: not by its leader."""
    for text, number in forms:
        for box in _list_boxes(*point, text.width, LABEL_HEIGHT * len(text.lines) * form.line_height):
            is_inside = room.left <= box.left and box.right <= room.right
            is_inside &= room.low <= box.low and box.high <= room.high
            leader = _sample_strokes(find_leader(point, box))
            if is_inside and not _overlap([box], occupied) and not _overlap(leader, barriers):
                return PointLabel(text, box, number)
    return None


def _list_boxes(x: float, y: float, width: float, height: float) -> Iterator[Box]:
    for gap, (right, up) in itertools.product(GAPS, DIRECTIONS):
        gap = gap / 2 if right and up else gap  # diagonal positions are closer
        left = x + right * gap + (right - 1) * width / 2
        low = y + up * gap + (up - 1) * height / 2
        yield Box(left, low, left + width, low + height)


def _overlap(boxes: Sequence[Box], others: Sequence[Box]) -> bool:
    return any(
        a.left < b.right and b.left < a.right and a.low < b.high and b.low < a.high for a in boxes for b in others
    )


def _surround(point: Point, radius: float) -> Box:
    return Box(point[0] - radius, point[1] - radius, point[0] + radius, point[1] + radius)


def _find_nearest(point: Point, box: Box) -> Point:
    return min(max(point[0], box.left), box.right), min(max(point[1], box.low), box.high)


def find_leader(point: Point, box: Box) -> tuple[Point, ...]:
    """A stroke from near a point to the nearest place of its label's box; none if they are close."""
    x, y = _find_nearest(point, box)
    length = math.dist(point, (x, y))
    if length < LEADER_LENGTH:
        return ()
    share = LEADER_START / length
    return (point[0] + (x - point[0]) * share, point[1] + (y - point[1]) * share), (x, y)


def _sample_strokes(corners: Sequence[Point]) -> list[Box]:
    """Small boxes along the strokes between corners, without their ends."""
    boxes = []
    for first, last in itertools.pairwise(corners):
        steps = max(1, int(math.dist(first, last) / 3.0))
        for i in range(1, steps):
            x, y = (a + (b - a) * i / steps for a, b in zip(first, last, strict=True))
            boxes.append(_surround((x, y), 1.5))
    return boxes


def _list_front_strokes(panel: Panel, geometry: ChartGeometry) -> Iterator[Box]:
    """The Pareto front, and the level."""
    plot = geometry.plot
    corners = [locate(panel, geometry, *at) for at in panel.pareto_front]
    if panel.front_end is not None and corners:
        corners.append((locate(panel, geometry, panel.front_end, panel.pareto_front[-1][1])[0], corners[-1][1]))
    yield from _sample_strokes(corners)
    if panel.level is not None:
        y = locate(panel, geometry, max(panel.ticks), panel.level)[1]
        yield Box(plot.left, y - 1.0, plot.right, y + 1.0)


def place_level_text(panel: Panel, form: ChartFormat, geometry: ChartGeometry) -> Box:
    """The place of a level's text: above it, or of a plot of lines below, as far from the values as possible."""
    plot, width, height = geometry.plot, measure_width(panel.level_text, form.small), 1.2 * form.small
    _, y = locate(panel, geometry, max(panel.ticks), panel.level or 0.0)
    values = []
    for line in panel.lines:
        corners = [locate(panel, geometry, *at) for at in zip(line.x, line.y, strict=True)]
        values += [*corners, *((box.left, box.low) for box in _sample_strokes(corners))]
    room = plot.right - plot.left - width - 6.0
    lows = (y,) if panel.is_scatter_plot or y - height < plot.low else (y, y - height)
    ends = itertools.product(lows, (plot.left + 3.0 + room * i / 4 for i in range(5)))
    boxes = (Box(left, low, left + width, low + height) for low, left in ends)
    return max(boxes, key=lambda box: min(math.dist(at, _find_nearest(at, box)) for at in values))


def _list_intervals(panel: Panel, geometry: ChartGeometry, line: Line, at: Point) -> Iterator[Box]:
    x, y = at
    if line.left and line.right:
        left, right = (locate(panel, geometry, end[0], line.y[0])[0] for end in (line.left, line.right))
        yield Box(left, y - 1.0, right, y + 1.0)
    if line.low and line.high and not panel.is_exact(line.x[0], line.y[0]):
        ends = max(line.low[0], panel.exact_below or line.low[0]), line.high[0]
        low, high = (locate(panel, geometry, line.x[0], end)[1] for end in ends)
        yield Box(x - 1.0, low, x + 1.0, high)


@dataclass(frozen=True)
class LabelList:
    """The labels listed below a plot, with samples of their lines, and numbers where they have one."""

    lines: Sequence[Line]
    numbers: Sequence[str]
    labels: Sequence[LabelText]
    columns: int
    heights: Sequence[float]

    @classmethod
    def of(cls, lines: Sequence[Line], numbers: Sequence[str], form: ChartFormat) -> LabelList:
        """The list of these lines, in as many columns as fit."""
        room = form.width - 2 * PADDING
        labels = [lay_out_label(line, form, room - SWATCH - NUMBER_WIDTH) for line in lines]
        widest = max((label.width for label in labels), default=0.0) + SWATCH + NUMBER_WIDTH + KEY_GAP
        columns = min(max(1, int((room + KEY_GAP) / widest)), max(1, len(labels)))
        rows = (labels[i : i + columns] for i in range(0, len(labels), columns))
        heights = [max(len(label.lines) for label in row) * form.line_height for row in rows]
        return cls(lines, numbers, labels, columns, heights)

    def write(self, chart: Chart, mark_type: PlotKind, bold: Collection[str]) -> None:
        """Write the list at the bottom of the chart."""
        ends = list(itertools.accumulate(self.heights))
        for place, (line, number, label) in enumerate(zip(self.lines, self.numbers, self.labels, strict=True)):
            row, column = divmod(place, self.columns)
            x = PADDING + column * (chart.form.width - 2 * PADDING) / self.columns + NUMBER_WIDTH
            y = PADDING + ends[-1] - ends[row] + self.heights[row] / 2
            chart.write(x - 3.0, y, number, ha="right")
            chart.draw_swatch(x, y, line.line_style, mark_type)
            chart.write_label(x + SWATCH, y, label, bold=line.label in bold)
