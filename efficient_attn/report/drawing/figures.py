"""Panels of lines with intervals, points or bars; their rendering as SVG and PNG, and plans of plots.

Labels are at the line ends. The data of a plot are collected when it is drawn, because few of many plots are.

Uses matplotlib's objects and not pyplot: no global state, no window, and the same bytes for the same rows.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from ...results.file_marks import MARK
from ...results.sanitize import sanitize_line
from ...units import Unit
from .. import formatting
from .axes import compute_linear_limits, compute_log_limits, make_y_ticks
from .labels import ChartFormat
from .layout import make_chart
from .panel_data import Line, PanelData, Picture
from .primitives import compute_bar_width
from .style import FAINT, LineStyle, LineStyles, make_chart_sheet
from .svg_renderer import SMALL_TEXT_SIZE, TEXT_SIZE, TITLE_SIZE, draw_svg

FigureFormat = Literal["pdf", "svg", "png"]

PAGE_FORMAT = ChartFormat(270.0, TEXT_SIZE, SMALL_TEXT_SIZE, TITLE_SIZE)  # legible in a phone's column
MOST_LINES, MOST_ROWS, MOST_POINTS = 12, 14, 20  # lines of a panel; rows of a dot plot; labels of a scatter plot
MAX_TITLE_LETTERS = 60  # of a picture
PAGE_DPI = 200
# svg.hashsalt makes ids deterministic; text stays text, so that it is searchable and accessible
SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    "text.hinting": "no_hinting",
    "text.parse_math": False,  # dollar signs are literal
    "svg.hashsalt": "efficient-attn",
    "svg.fonttype": "none",
}


@dataclass(frozen=True, kw_only=True)
class Panel(PanelData):
    """One plot of lines, points or bars; see `PanelData` for its fields."""

    def resolve(self) -> Panel:
        """The panel with bars side by side, and with the bounds of its axes."""
        panel = replace(self, lines=_offset_bars(self.lines) if self.mark_type == "bars" else self.lines)
        return replace(panel, bounds=panel.bounds or _compute_bounds(panel))

    def make_figure(self) -> Figure:
        """The panel as a matplotlib figure."""
        return make_chart(self.resolve(), PAGE_FORMAT)

    def split(self) -> list[tuple[str, Picture]]:
        """Several dot plots, the one with the lowest rows first; or scatter plots, all with all points, of which those
        of the others are grey and have no labels."""
        if self.is_dot_plot:
            return [(text, self._take(text, lines)) for text, lines in formatting.split_evenly(self.lines, MOST_ROWS)]
        if not self.is_scatter_plot or len(self.lines) <= MOST_POINTS:
            return [("", self)]
        grey, parts = LineStyle(FAINT, "o", "-", hollow=True), []
        by_label = sorted(self.lines, key=lambda line: line.label)
        for text, labeled in formatting.split_evenly(by_label, MOST_POINTS):
            rest = (replace(line, label="", note="", line_style=grey) for line in self.lines if line not in labeled)
            parts.append((text, replace(self, title=f"{self.title}, {text}", lines=(*rest, *labeled))))
        return parts

    def _take(self, text: str, lines: Sequence[Line]) -> Panel:
        """These rows of a dot plot."""
        rows = tuple(replace(line, y=[float(y)]) for y, line in enumerate(lines))
        title = ", ".join(filter(None, (self.title, text)))
        return replace(self, title=title, lines=rows, bounds=_compute_row_bounds(len(rows)))


def _compute_row_bounds(count: int) -> tuple[float, float]:
    return -0.6, count - 0.4


def make_dot_plot(
    lines: Sequence[Line], unit: Unit, *, log_x: bool = True, ticks: dict[float, str] | None = None, **fields: Any
) -> Panel:
    """A dot plot: values and intervals along x, one row per line, from bottom to top.

    ticks: of x, by default such that all values and bands are between the outer ones. fields: others of the panel.
    """
    if ticks is None:
        least = fields.get("exact_below") or -math.inf
        values = [x for line in lines for x in line.list_x() if math.isfinite(x) and x >= least]
        values += [end for band in fields.get("bands", ()) for end in band]
        limits = compute_log_limits(values) if log_x else compute_linear_limits(values)
        ticks = {limits[0]: "", limits[1]: "", **make_y_ticks(unit, *limits, log=log_x)}
    fields |= {
        "ylabel": "",
        "log_y": False,
        "bounds": _compute_row_bounds(len(lines)),
        "mark_type": "points",
        "margin": 0.0,
    }
    return Panel(lines=tuple(lines), unit=unit, log_x=log_x, ticks=ticks, **fields)


@dataclass(frozen=True)
class Plot:
    """A rendered picture. body: elements of its SVG. mode: if all rows share one."""

    panel: Picture
    view_box: str
    body: str
    png: bytes = field(repr=False)
    mode: str | None = None

    @property
    def inline(self) -> str:
        """The SVG for pages, which have the style sheet of all charts."""
        return _wrap_svg(self.view_box, self.body, self.panel.alt or self.panel.title)

    @property
    def svg(self) -> str:
        """The SVG as a file of its own."""
        return format_svg(self.view_box, self.body, self.panel.alt or self.panel.title)


def format_svg(view_box: str, body: str, title: str, description: str = "") -> str:
    """A file of an SVG's elements, with the style sheet of charts and a background."""
    _, _, width, height = view_box.split()
    size = f' xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="{height}pt"'
    about = f"<desc>{escape(sanitize_line(description), quote=False)}</desc>" if description else ""
    card = '<rect class="h" stroke-width="0" width="100%" height="100%"/>'
    sheet = f"<metadata>{MARK}</metadata><style>{make_chart_sheet()}</style>"
    return _wrap_svg(view_box, about + sheet + card + body, title, size) + "\n"


def _wrap_svg(view_box: str, body: str, title: str, attributes: str = "") -> str:
    text = escape(sanitize_line(title), quote=False)
    return f'<svg class="chart" viewBox="{view_box}" role="img"{attributes}><title>{text}</title>{body}</svg>'


def render_plot(picture: Picture, *, raster: bool = True) -> Plot:
    """Render the picture as SVG and PNG. Without ``raster`` the PNG is omitted, which halves the time."""
    with matplotlib.rc_context(SETTINGS):
        figure = picture.make_figure()
        view_box, body = draw_svg(figure)
        options = {"facecolor": "white", "pil_kwargs": {"compress_level": 2}}
        png = save_figure(figure, "png", dpi=PAGE_DPI, **options) if raster else b""
    return Plot(picture, view_box, body, png)


def save_figure(
    figure: Figure, form: FigureFormat, *, title: str = "", subject: str | None = None, **options: Any
) -> bytes:
    """The content of a file of this format, without a date: the same bytes for the same figure."""
    metadata: dict[FigureFormat, dict[str, str | None]] = {
        "pdf": {"Creator": MARK, "Subject": subject, "CreationDate": None},
        "svg": {"Creator": MARK, "Date": None},
        "png": {"Software": MARK, "Description": subject},
    }
    out = io.BytesIO()
    figure.savefig(out, format=form, metadata=metadata[form] | ({"Title": title} if title else {}), **options)
    return out.getvalue()


@dataclass(frozen=True)
class PlotPlan:
    """A plot that can be drawn. collect: makes the picture, without what the plan has: name, kind and configuration.

    draw_order: of its kind. single_length: whether it is a dot plot. mode: if all rows share one.
    """

    name: str
    kind: str
    title: str
    line_count: int
    collect: Callable[[], Picture]
    draw_order: int = 0
    single_length: bool = False
    mode: str | None = None
    config_text: str = ""

    @property
    def rank(self) -> int:
        """Drawn first if low: the order of its kind; plots of one length last, as tables show it too."""
        return self.draw_order + 3 * self.single_length

    def make_picture(self) -> Picture:
        """The picture to draw."""
        return replace(self.collect(), name=self.name, kind=self.kind, config_text=self.config_text)

    def render(self, *, raster: bool = True) -> Plot:
        """The plot as SVG and, unless ``raster`` is false, as PNG."""
        return replace(render_plot(self.make_picture(), raster=raster), mode=self.mode)


@dataclass(frozen=True)
class PlotContext:
    """What all plots of a setting share: line styles by label, the suffix of file names, and the configuration."""

    line_styles: LineStyles
    suffix: str = ""
    config_text: str = ""

    def plan(
        self, name: str, kind: str, title: str, line_count: int, collect: Callable[[], Picture], **options: Any
    ) -> PlotPlan:
        """The plan of a plot of this setting. options: other fields of `PlotPlan`."""
        return PlotPlan(name, kind, title, line_count, collect, config_text=self.config_text, **options)

    def plan_pictures(self, name: str, kind: str, picture: Picture, **options: Any) -> Iterator[PlotPlan]:
        """The plans of a picture whose data are collected already; several if it would be too tall."""
        for text, part in picture.split():
            part_name, make = formatting.make_slug(name, text), partial(replace, part)
            yield self.plan(part_name, kind, part.title, part.count_lines(), make, **options)


def _compute_bounds(panel: Panel) -> tuple[float, float]:
    """y limits that contain all values, with padding."""
    lines = panel.split_lane(exact=False) if panel.has_lane else panel.lines
    values = [v for line in lines for part in (line.y, line.low, line.high) if part for v in part]
    if panel.log_y:
        return compute_log_limits(values, panel.level)
    if panel.mark_type != "bars":
        return compute_linear_limits(values)
    low, high = compute_linear_limits([*values, 0.0])
    return 0.0 if min(values) >= 0 < max(values) else low, high


def _offset_bars(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Shift the x of each line so that bars are grouped around their common tick."""
    centre = (len(lines) - 1) / 2
    return tuple(
        replace(n, x=[x + (i - centre) * compute_bar_width(len(lines)) for x in n.x]) for i, n in enumerate(lines)
    )
