"""Small multiples: panels that share their axes, with their titles, and the names of rows or one key below.

In dot plots the panels share their rows, which continue on further pages if there are many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from .canvas import LINE_GAP, PADDING, Chart, measure_head
from .figures import Panel
from .geometry import LANE, LANE_GAP, LANE_TEXT, ROW_GAP, TICK_GAP, ChartGeometry, locate
from .labels import Box, ChartFormat, LabelText, lay_out_label, measure_width, wrap_words
from .layout import draw_axes
from .panel_data import Line
from .point_labels import LabelList
from .primitives import draw_values, list_y_ticks
from .style import FAINT, INK

COLUMN_WIDTHS = {4: 4.5, 2: 2.6}  # inches from which so many panels are side by side
MAX_ASPECT, PLOT_ASPECT, MIN_HEIGHT = 1.2, 0.8, 60.0  # height over width of a page; of one of several plots; points
NAMES_SHARE, PANEL_GAP = 0.42, 14.0  # largest width of the names of rows, over the figure's; points between panels
TITLE_WIDTH = 1.15  # width of bold text, over that of other text


def share_axes(panels: Sequence[Panel]) -> list[Panel]:
    """Give panels that show the same the same limits."""
    resolved = [panel.resolve() for panel in panels]
    shared = []
    for panel in resolved:
        same_x = [x for x in resolved if x.xlabel == panel.xlabel and (x.ylabel or x.unit == panel.unit)]
        same_y = [x for x in resolved if (x.ylabel, x.unit) == (panel.ylabel, panel.unit)]
        lows, highs = zip(*(x.bounds for x in same_y if x.bounds), strict=True)
        ticks = {tick: text for x in same_x for tick, text in x.ticks.items()}
        shared.append(replace(panel, ticks=ticks, bounds=(min(lows), max(highs))))
    return shared


def _list_rows(panels: Sequence[Panel]) -> list[Line]:
    """One line for each label, top rows first; if possible not a grey one."""
    rows: dict[str, Line] = {}
    for panel in panels:
        for line in sorted(panel.lines, key=lambda line: -line.y[-1]):
            if line.label not in rows or rows[line.label].line_style.colour == FAINT:
                rows[line.label] = line
    return list(rows.values())


def split_pages(grid: Grid) -> Iterator[list[Panel]]:
    """Pages of a dot plot, each with as many rows as its height allows; all pages have about as many."""
    heights = [len(name.lines) * grid.form.line_height + ROW_GAP for name in grid.names]
    room = (MAX_ASPECT * grid.form.width - grid.head) / grid.grid_rows - sum(grid.margins)
    count = math.ceil(sum(heights) / max(room - max(heights), max(heights)))
    pages: list[list[int]] = [[] for _ in range(count)]
    for i, end in enumerate(itertools.accumulate(heights)):
        pages[min(int(count * (end - heights[i] / 2) / sum(heights)), count - 1)].append(i)
    for page in filter(None, pages):
        total = sum(heights[i] for i in page)
        ends = itertools.accumulate(heights[i] for i in page)
        places = {grid.rows[i].label: total - end + heights[i] / 2 for i, end in zip(page, ends, strict=True)}
        yield [
            replace(
                panel,
                lines=tuple(replace(x, y=[places[x.label]]) for x in panel.lines if x.label in places),
                bounds=(0.0, total),
            )
            for panel in grid.panels
        ]


def _lay_out_names(rows: Sequence[Line], form: ChartFormat, *, with_notes: bool) -> list[LabelText]:
    lines = [line if with_notes else replace(line, note="") for line in rows]
    labels = [lay_out_label(line, form, NAMES_SHARE * form.width, max_lines=2) for line in lines]
    if all(label.complete for label in labels):
        return labels
    return [lay_out_label(line, form, NAMES_SHARE * form.width) for line in lines]


@dataclass(frozen=True)
class Grid:
    """Where several panels stand. rows: a line for each label, names: of the rows of a dot plot. own_ticks: whether all
    panels have labels of ticks, as their axes differ."""

    form: ChartFormat
    panels: Sequence[Panel]
    titles: Sequence[Sequence[str]]
    rows: Sequence[Line]
    names: Sequence[LabelText]
    key: LabelList
    columns: int
    left: float
    own_ticks: bool

    @classmethod
    def of(cls, panels: Sequence[Panel], form: ChartFormat, titles: Sequence[str], left: float = 0.0) -> Grid:
        """The arrangement of these panels. left: least width of the names."""
        rows = _list_rows(panels)
        is_dot_plot = panels[0].is_dot_plot
        names = _lay_out_names(rows, form, with_notes=len(panels) == 1) if is_dot_plot else []
        texts = [*(text for panel in panels for text in list_y_ticks(panel).values()), LANE_TEXT]
        widths = [name.width for name in names] or [measure_width(text, form.small) for text in texts]
        union = replace(panels[0], lines=tuple(replace(line, note="") for line in rows))
        key = LabelList.of([] if is_dot_plot else range(len(rows)), union, form)
        most = next((count for count, inches in COLUMN_WIDTHS.items() if form.width >= 72 * inches), 1)
        columns = min(len(panels), most)
        own_ticks = len({(panel.ylabel, panel.unit) for panel in panels if panel.ylabel}) > 1
        grid = cls(form, panels, [], rows, names, key, columns, max(left, PADDING + max(widths) + TICK_GAP), own_ticks)
        wrapped = (
            [wrap_words(title, TITLE_WIDTH * form.small, grid.panel_width + 6.0) for title in titles]
            if len(panels) > 1
            else []
        )
        return replace(grid, titles=wrapped)

    @property
    def head(self) -> float:
        """Height of the configuration."""
        return measure_head("", self.panels[0].config_text, self.form)

    @property
    def step(self) -> float:
        """Distance of the left ends of neighboring panels."""
        room = self.form.width - self.left - PADDING - max(4.0, self.tick_reach)
        return (room + self.gap) / self.columns

    @property
    def tick_reach(self) -> float:
        """How far labels of ticks may reach beyond a panel."""
        texts = (text for panel in self.panels for text in panel.ticks.values())
        return max(measure_width(text, self.form.small) / 2 for text in texts)

    @property
    def gap(self) -> float:
        """Points between neighboring panels."""
        return self.left + 4.0 if self.own_ticks else max(PANEL_GAP, self.tick_reach + 8.0)

    @property
    def panel_width(self) -> float:
        """Width of a panel, with the lane of a dot plot."""
        return self.step - self.gap

    @property
    def grid_rows(self) -> int:
        """Rows of panels."""
        return math.ceil(len(self.panels) / self.columns)

    @property
    def margins(self) -> tuple[float, float]:
        """Heights above and below each plot: title and name of y, labels of ticks and name of x."""
        line = self.form.text * LINE_GAP
        titles = max(map(len, self.titles), default=0)
        above = line * titles + (line + 5.0 if self.panels[0].ylabel else 4.0)
        above += self.form.small + 2.0 if len(self.panels) == 1 and self.panels[0].band_texts else 0.0
        x_lines = max(len(self.wrap_xlabel(panel)) for panel in self.panels)
        lane = LANE + LANE_GAP if self.panels[0].ylabel and any(panel.has_lane for panel in self.panels) else 0.0
        return above, TICK_GAP + self.form.small + line * x_lines + 2.0 + lane

    @property
    def plot_height(self) -> float:
        """Height of each plot."""
        if self.names:
            return sum(len(name.lines) * self.form.line_height + ROW_GAP for name in self.names)
        room = MAX_ASPECT * self.form.width - self.head - self.key.height
        return max(min(PLOT_ASPECT * self.panel_width, room / self.grid_rows - sum(self.margins)), MIN_HEIGHT)

    @property
    def height(self) -> float:
        """Height of the figure."""
        return self.head + self.grid_rows * (self.plot_height + sum(self.margins)) + self.key.height

    def wrap_xlabel(self, panel: Panel) -> list[str]:
        """The lines of the name of x."""
        return wrap_words(panel.xlabel, self.form.text, self.panel_width)

    def has_ticks(self, number: int) -> bool:
        """Whether a panel has labels of its y ticks."""
        return self.own_ticks or number % self.columns == 0

    def place(self, number: int, panel: Panel) -> ChartGeometry:
        """The plot of a panel and its lane."""
        row, column = divmod(number, self.columns)
        above, below = self.margins
        left = self.left + column * self.step
        high = self.height - self.head - row * (self.plot_height + above + below) - above
        low, right = high - self.plot_height, left + self.panel_width
        plot, lane = Box(left, low, right, high), None
        if panel.has_lane and panel.ylabel:
            lane = Box(left, low - LANE_GAP - LANE, right, low - LANE_GAP)
        elif panel.has_lane:
            lane = Box(left, low, left + measure_width(LANE_TEXT, self.form.small) + 2.0, high)
            plot = Box(lane.right + LANE_GAP, low, right, high)
        return ChartGeometry(self.height, plot, lane)

    def write_texts(self, chart: Chart, number: int, panel: Panel, geometry: ChartGeometry) -> None:
        """Write a panel's title and the names of its axes."""
        line, plot = self.form.text * LINE_GAP, geometry.plot
        left = (geometry.lane or plot).left
        y = plot.high + 5.0 + self.form.text / 2
        if panel.ylabel and self.has_ticks(number):
            chart.write(PADDING if number % self.columns == 0 else left - self.left + PADDING, y, panel.ylabel)
        y += line if panel.ylabel else 0.0
        for text in reversed(self.titles[number] if self.titles else []):
            chart.paper.text(left, y, text, fontsize=self.form.small, fontweight="bold", color=INK, va="center")
            y += line
        y = (geometry.lane or plot).low - TICK_GAP - self.form.small - self.form.text / 2
        for text in self.wrap_xlabel(panel):
            chart.write((left + plot.right) / 2, y, text, ha="center")
            y -= line


def draw_multiples(grid: Grid, bold: Collection[str]) -> Figure:
    """Draw panels side by side and in rows, with their titles, and the names of rows or one key below."""
    chart = Chart(grid.form, grid.height)
    chart.write_head("", grid.panels[0].config_text)
    for number, panel in enumerate(grid.panels):
        geometry = grid.place(number, panel)
        count = len(chart.figure.axes)
        bare = replace(panel, xlabel="", ylabel=panel.ylabel and " ")
        if len(grid.panels) > 1:  # there is no room for texts in plots
            bare = replace(bare, level_text="", band_texts=("",) * len(panel.bands))
        draw_values(draw_axes(chart, bare, geometry), bare, bold)
        for axes in chart.figure.axes[count:] if not grid.has_ticks(number) else []:
            axes.tick_params(labelleft=False)
        grid.write_texts(chart, number, panel, geometry)
        if panel.is_dot_plot and number % grid.columns == 0:
            for label, line in zip(grid.names, grid.rows, strict=True):
                _, y = locate(panel, geometry, max(panel.ticks), line.y[0])
                chart.write_label(PADDING, y, label, bold=line.label in bold)
    grid.key.write(chart, replace(grid.panels[0], lines=tuple(grid.rows)), [""] * len(grid.rows), bold)
    return chart.figure
