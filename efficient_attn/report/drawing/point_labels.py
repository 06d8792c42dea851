"""Labels beside points, and the list of those that do not fit there."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .canvas import PADDING, SWATCH, Chart
from .geometry import ChartGeometry, Point, locate, locate_ends
from .labels import (
    Box,
    ChartFormat,
    LabelText,
    find_leader,
    lay_out_label,
    make_number_label,
    measure_width,
    place_beside,
    sample_strokes,
)
from .panel_data import Line, PanelData

KEY_GAP, NUMBER_WIDTH = 8.0, 13.0  # points: between columns of a list; of a number in it
MARKER_RADIUS = 3.2  # points, of what a label must not cover
LABEL_HEIGHT = 0.92  # of a label's lines that must be free
LABEL_SHARES = 0.6, 0.45, 0.34  # widths of a label over the chart's, preferred first


class PointLabel(NamedTuple):
    """A label beside a point, at its left end and middle. number: if the label is a number, explained in the list."""

    label: LabelText
    x: float
    y: float
    number: str
    leader: tuple[Point, ...] = ()

    def write(self, chart: Chart, up: float, *, bold: bool) -> None:
        """Write the label this much higher, with a stroke to its point if that is far."""
        chart.write_label(self.x, self.y + up, self.label, bold=bold)
        if self.leader:
            chart.draw_strokes([[(x, y + up) for x, y in self.leader]], width=0.5)


def place_labels(panel: PanelData, form: ChartFormat, geometry: ChartGeometry) -> list[PointLabel]:
    """Place labels beside points: on one line, on several, or else as numbers."""
    points = locate_ends(panel, geometry)
    markers = [Box(x - MARKER_RADIUS, y - MARKER_RADIUS, x + MARKER_RADIUS, y + MARKER_RADIUS) for x, y in points]
    strokes = [*_list_front_strokes(panel, geometry, form)]
    for line, at in zip(panel.lines, points, strict=True):
        strokes += _list_intervals(panel, geometry, line, at)
    plot, lane = geometry.plot, geometry.lane or geometry.plot
    rooms = []
    for line in panel.lines:
        low = lane.low if panel.is_exact(line.x[0], line.y[0]) else plot.low
        rooms.append(Box(plot.left, low, form.width - 1.0, plot.high + 4.0))
    forms = [_list_forms(line, form) for line in panel.lines]
    sizes = [[(text.width, LABEL_HEIGHT * len(text.lines) * form.line_height) for text in texts] for texts in forms]
    spots = place_beside(points, sizes, markers, strokes, rooms)
    placed, count = [], 0
    for texts, at, spot, line in zip(forms, points, spots, panel.lines, strict=True):
        chosen, left, middle = spot or (len(texts) - 1, at[0] + MARKER_RADIUS, at[1] + MARKER_RADIUS)
        is_number = bool(line.label) and chosen == len(texts) - 1
        count += is_number
        text = make_number_label(str(count), form) if is_number else texts[chosen]
        half = LABEL_HEIGHT * len(text.lines) * form.line_height / 2
        leader = find_leader(at, Box(left, middle - half, left + text.width, middle + half))
        placed.append(PointLabel(text, left, middle, str(count) if is_number else "", leader if line.label else ()))
    return placed


def _list_forms(line: Line, form: ChartFormat) -> list[LabelText]:
    """The complete forms of a label, preferred first, and a number; nothing for a line without a label."""
    texts = [lay_out_label(line, form, share * form.width) for share in LABEL_SHARES]
    if not line.label:
        return texts[:1]
    return [*(text for text in texts if text.complete), make_number_label("88", form)]


def _list_front_strokes(panel: PanelData, geometry: ChartGeometry, form: ChartFormat) -> Iterator[Box]:
    """The Pareto front, and the level with its text."""
    plot = geometry.plot
    corners = [locate(panel, geometry, *at) for at in panel.pareto_front]
    if panel.front_end is not None and corners:
        corners.append((locate(panel, geometry, panel.front_end, panel.pareto_front[-1][1])[0], corners[-1][1]))
    yield from sample_strokes(corners)
    if panel.level is not None:
        y = locate(panel, geometry, max(panel.ticks), panel.level)[1]
        yield Box(plot.left, y - 1.0, plot.right, y + 1.0)
        yield Box(plot.left, y, plot.left + 3.0 + measure_width(panel.level_text, form.small), y + 1.2 * form.small)


def _list_intervals(panel: PanelData, geometry: ChartGeometry, line: Line, at: Point) -> Iterator[Box]:
    """The intervals of a point."""
    x, y = at
    if line.left and line.right:
        left, _ = locate(panel, geometry, line.left[0], line.y[0])
        right, _ = locate(panel, geometry, line.right[0], line.y[0])
        yield Box(left, y - 1.0, right, y + 1.0)
    if line.low and line.high and not panel.is_exact(line.x[0], line.y[0]):
        _, low = locate(panel, geometry, line.x[0], max(line.low[0], panel.exact_below or line.low[0]))
        _, high = locate(panel, geometry, line.x[0], line.high[0])
        yield Box(x - 1.0, low, x + 1.0, high)


@dataclass(frozen=True)
class LabelList:
    """The labels listed below a plot. indices: of their lines."""

    indices: Sequence[int]
    labels: Sequence[LabelText]
    columns: int
    form: ChartFormat

    @classmethod
    def of(cls, indices: Sequence[int], panel: PanelData, form: ChartFormat) -> LabelList:
        """The list of these lines, in as many columns as fit."""
        room = form.width - 2 * PADDING
        labels = [lay_out_label(panel.lines[i], form, room - SWATCH - NUMBER_WIDTH) for i in indices]
        widest = max((label.width for label in labels), default=0.0) + SWATCH + NUMBER_WIDTH + KEY_GAP
        return cls(indices, labels, min(max(1, int((room + KEY_GAP) / widest)), max(1, len(labels))), form)

    @property
    def rows(self) -> list[float]:
        """Heights of the rows."""
        starts = range(0, len(self.labels), self.columns)
        return [
            max(len(label.lines) for label in self.labels[i : i + self.columns]) * self.form.line_height for i in starts
        ]

    @property
    def height(self) -> float:
        """Height of all rows."""
        return sum(self.rows)

    def write(self, chart: Chart, panel: PanelData, numbers: Sequence[str], bold: Collection[str]) -> None:
        """Write the list at the bottom of the chart. numbers: of all lines."""
        ends = list(itertools.accumulate(self.rows))
        for place, (index, label) in enumerate(zip(self.indices, self.labels, strict=True)):
            row, column = divmod(place, self.columns)
            x = PADDING + column * (chart.form.width - 2 * PADDING) / self.columns + NUMBER_WIDTH
            y = PADDING + self.height - ends[row] + self.rows[row] / 2
            chart.write(x - 3.0, y, numbers[index], ha="right")
            chart.draw_swatch(x, y, panel.lines[index], panel)
            chart.write_label(x + SWATCH, y, label, bold=panel.lines[index].label in bold)
