"""Small multiples: panels that share their axes, with their titles, and one key below.

Dot plots, also single ones, share the names of their rows, and continue on further pages if there are many.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from matplotlib.figure import Figure

from .canvas import LINE_GAP, PADDING, Box, Chart, measure_head
from .geometry import LANE, LANE_GAP, LANE_TEXT, TICK_GAP, ChartGeometry, locate, measure_rows, place_lane
from .labels import ChartFormat, LabelText, lay_out_label, make_number_label, measure_width, wrap_words
from .layout import draw_axes, make_chart, write_point_labels
from .panel_data import Line, Panel
from .point_labels import LabelList, place_labels
from .primitives import draw_values, list_y_ticks
from .style import FAINT, INK

COLUMN_WIDTHS = {4: 4.5, 2: 2.6}  # inches from which so many panels are side by side
PLOT_ASPECT, MIN_HEIGHT = 0.8, 60.0  # height over width of one of several plots; points
NAMES_SHARE, PANEL_GAP = 0.44, 14.0  # largest width of the names of rows, over the figure's; points between panels
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


class _Grid(NamedTuple):
    """Where several panels stand, in points. rows: a line for each label, names: of the rows of a dot plot. left: width
    of the names. width, step: of a panel, and from one to the next. head, above, below: heights of the texts above the
    grid and at each plot. room: for the height of a plot. own_ticks: whether all panels have labels of ticks, as their
    axes differ."""

    panels: Sequence[Panel]
    form: ChartFormat
    titles: Sequence[Sequence[str]]
    rows: Sequence[Line]
    names: Sequence[LabelText]
    key: LabelList
    columns: int
    left: float
    width: float
    step: float
    head: float
    above: float
    below: float
    room: float
    own_ticks: bool

    def has_ticks(self, number: int) -> bool:
        """Whether a panel has labels of its y ticks."""
        return self.own_ticks or number % self.columns == 0


def _arrange(panels: Sequence[Panel], form: ChartFormat, titles: Sequence[str], left: float = 0.0) -> _Grid:
    """The arrangement of these panels. left: least width of the names."""
    rows, first, line = _list_rows(panels), panels[0], form.text * LINE_GAP
    plain = [replace(row, note="") for row in rows]
    named, listed = (rows if len(panels) == 1 else plain, []) if first.is_dot_plot else ([], plain)
    names = [lay_out_label(row, form, NAMES_SHARE * form.width) for row in named]
    numbers = [str(i + 1) if first.is_scatter_plot else "" for i in range(len(listed))]  # options may share a marker
    key = LabelList.of(listed, numbers, form)
    ticks = [*(text for panel in panels for text in list_y_ticks(panel).values()), LANE_TEXT]
    widths = [name.width for name in names] or [measure_width(text, form.small) for text in ticks]
    left = max(left, PADDING + max(widths) + TICK_GAP)
    columns = min(len(panels), next((count for count, width in COLUMN_WIDTHS.items() if form.width >= 72 * width), 1))
    own_ticks = len({(panel.ylabel, panel.unit) for panel in panels if panel.ylabel}) > 1
    reach = max(measure_width(text, form.small) / 2 for panel in panels for text in panel.ticks.values())
    gap = left + 4.0 if own_ticks else max(PANEL_GAP, reach + 8.0)  # labels of ticks reach beyond a panel
    step = (form.width - left - PADDING - max(4.0, reach) + gap) / columns
    width, is_single = step - gap, len(panels) == 1
    wrapped = [] if is_single else [wrap_words(text, TITLE_WIDTH * form.small, width + 6.0) for text in titles]
    above = line * max(map(len, wrapped), default=0) + (line + 5.0 if first.ylabel else 4.0)
    above += form.small + 2.0 if is_single and first.band_texts else 0.0
    below = TICK_GAP + form.small + line * max(len(wrap_words(x.xlabel, form.text, width)) for x in panels) + 2.0
    below += LANE + LANE_GAP if first.ylabel and any(panel.has_lane for panel in panels) else 0.0
    head = measure_head(first.title, first.config_text, form)
    room = (form.aspect * form.width - head - sum(key.heights)) / math.ceil(len(panels) / columns) - above - below
    return _Grid(
        panels, form, wrapped, rows, names, key, columns, left, width, step, head, above, below, room, own_ticks
    )


def _list_rows(panels: Sequence[Panel]) -> list[Line]:
    """One line for each label, top rows first; if possible not a grey one."""
    rows: dict[str, Line] = {}
    for panel in panels:
        for line in sorted(panel.lines, key=lambda line: -line.y[-1]):
            if line.label not in rows or rows[line.label].line_style.colour == FAINT:
                rows[line.label] = line
    return list(rows.values())


def _split_pages(grid: _Grid) -> Iterator[list[Panel]]:
    """Pages of a dot plot, each with as many rows as its height allows; all pages have about as many."""
    heights = measure_rows(grid.names, grid.form)
    count = max(1, math.ceil(sum(heights) / max(grid.room - max(heights), max(heights))))
    pages: list[list[int]] = [[] for _ in range(count)]
    for i, end in enumerate(itertools.accumulate(heights)):
        pages[min(int(count * (end - heights[i] / 2) / sum(heights)), count - 1)].append(i)
    for page in filter(None, pages):
        total = sum(heights[i] for i in page)
        ends = itertools.accumulate(heights[i] for i in page)
        places = {grid.rows[i].label: total - end + heights[i] / 2 for i, end in zip(page, ends, strict=True)}
        lines = ([replace(x, y=[places[x.label]]) for x in panel.lines if x.label in places] for panel in grid.panels)
        pairs = zip(grid.panels, lines, strict=True)
        yield [replace(panel, lines=tuple(part), bounds=(0.0, total)) for panel, part in pairs]


def draw_panels(
    panels: Sequence[Panel], form: ChartFormat, titles: Sequence[str] = (), bold: Collection[str] = ()
) -> Iterator[Figure]:
    """Draw a chart, or small multiples: dot plots on as many pages as needed. bold: labels to emphasize."""
    if len(panels) == 1 and not panels[0].is_dot_plot:
        yield make_chart(panels[0], form, bold)
        return
    grid = _arrange(panels, form, titles)
    for page in _split_pages(grid) if panels[0].is_dot_plot else [panels]:
        yield _draw_page(_arrange(page, form, titles, grid.left), bold)


def _draw_page(grid: _Grid, bold: Collection[str]) -> Figure:
    """Draw panels side by side and in rows, with their titles, and the names of rows or one key below."""
    form, first = grid.form, grid.panels[0]
    plot_height = max(min(PLOT_ASPECT * grid.width, grid.room), MIN_HEIGHT)
    plot_height = sum(measure_rows(grid.names, form)) if grid.names else plot_height
    height = plot_height + grid.above + grid.below
    chart = Chart(form, grid.head + math.ceil(len(grid.panels) / grid.columns) * height + sum(grid.key.heights))
    chart.write_head(first.title, first.config_text)
    for number, panel in enumerate(grid.panels):
        row, column = divmod(number, grid.columns)
        left, high = grid.left + column * grid.step, chart.height - grid.head - row * height - grid.above
        low = high - plot_height - (LANE + LANE_GAP if panel.has_lane and panel.ylabel else 0.0)
        _draw_panel(chart, grid, number, place_lane(panel, Box(left, low, left + grid.width, high), form), bold)
    grid.key.write(chart, first.mark_type, bold)
    return chart.figure


def _draw_panel(chart: Chart, grid: _Grid, number: int, geometry: ChartGeometry, bold: Collection[str]) -> None:
    panel, form, count = grid.panels[number], grid.form, len(chart.figure.axes)
    bare = replace(panel, xlabel="", ylabel=panel.ylabel and " ")
    if len(grid.panels) > 1:  # there is no room for texts in plots
        bare = replace(bare, level_text="", band_texts=("",) * len(panel.bands))
    draw_values(draw_axes(chart, bare, geometry), bare, bold)
    for axes in chart.figure.axes[count:] if not grid.has_ticks(number) else []:
        axes.tick_params(labelleft=False)
    if panel.is_scatter_plot:
        numbers = dict(zip((row.label for row in grid.key.lines), grid.key.numbers, strict=True))
        lines = tuple(replace(x, label=numbers[x.label], note="") for x in bare.lines)
        room = form._replace(width=geometry.plot.right + 5.0)
        places = place_labels(replace(bare, lines=lines), room, geometry)
        places = [y._replace(text=make_number_label(x.label, form)) for x, y in zip(lines, places, strict=True)]
        write_point_labels(chart, panel, geometry, places, bold, 0.0)
    line, left, is_first = form.text * LINE_GAP, geometry.outer.left, number % grid.columns == 0
    y = geometry.plot.high + 5.0 + form.text / 2
    if panel.ylabel and grid.has_ticks(number):
        chart.write(PADDING if is_first else left - grid.left + PADDING, y, panel.ylabel)
    y += line if panel.ylabel else 0.0
    for text in reversed(grid.titles[number] if grid.titles else []):
        chart.paper.text(left, y, text, fontsize=form.small, fontweight="bold", color=INK, va="center")
        y += line
    y = geometry.outer.low - TICK_GAP - form.small - form.text / 2
    for text in wrap_words(panel.xlabel, form.text, grid.width):
        chart.write((left + geometry.plot.right) / 2, y, text, ha="center")
        y -= line
    for label, row in zip(grid.names, grid.rows, strict=True) if panel.is_dot_plot and is_first else ():
        _, y = locate(panel, geometry, max(panel.ticks), row.y[0])
        chart.write_label(PADDING, y, label, bold=row.label in bold)
