"""Panels of lines with intervals, points or bars; their rendering as SVG and PNG, and plans of plots.

Labels are at the line ends. The data of a plot are collected when it is drawn, because few of many plots are.

Uses matplotlib's objects and not pyplot: no global state, no window, and the same bytes for the same rows.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from ...results.file_marks import MARK
from ...units import Unit
from .axes import compute_linear_limits, compute_log_limits, make_y_ticks
from .panel_data import Line, PanelData, Picture
from .primitives import compute_bar_width, draw_frame, draw_values, label_line_ends
from .style import FAINT, INK, LineStyles

FigureFormat = Literal["pdf", "svg", "png"]

WIDTH, LEFT, AXES_WIDTH = 5.85, 0.92, 2.6  # inches
TOP, BOTTOM, LINE_HEIGHT = 0.36, 0.52, 0.158  # inches; LINE_HEIGHT: of a line of a label
CONFIG_LINE_HEIGHT, CONFIG_LETTERS = 0.12, 84  # a line of the configuration: inches, and maximum number of letters
MOST_LINES = 14  # of a panel
MAX_TITLE_LETTERS = 60  # of a picture
MAX_LETTERS = 26  # approximate length of a line of a label
PAGE_DPI = 150
NO_BREAK_SPACE = "\u00a0"  # SVG drops plain spaces at the start of a line
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
        return _make_figure(self.resolve())


def make_dot_plot(
    lines: Sequence[Line], unit: Unit, *, log_x: bool = True, ticks: dict[float, str] | None = None, **fields: Any
) -> Panel:
    """A dot plot: values and intervals along x, one row per line, from bottom to top.

    ticks: of x, by default such that all values and bands are between the outer ones. fields: others of the panel.
    """
    if ticks is None:
        values = [x for line in lines for x in line.list_x() if math.isfinite(x)]
        values += [end for band in fields.get("bands", ()) for end in band]
        limits = compute_log_limits(values) if log_x else compute_linear_limits(values)
        ticks = {limits[0]: "", limits[1]: "", **make_y_ticks(unit, *limits, log=log_x)}
    fields |= {"ylabel": "", "log_y": False, "bounds": (-0.6, len(lines) - 0.4), "mark_type": "points", "margin": 0.0}
    return Panel(lines=tuple(lines), unit=unit, log_x=log_x, ticks=ticks, **fields)


@dataclass(frozen=True)
class Plot:
    """A rendered picture. The page embeds the SVG; both files are stored as well. mode: if all rows share one."""

    panel: Picture
    svg: str
    png: bytes = field(repr=False)
    mode: str | None = None

    @property
    def inline(self) -> str:
        """The SVG for embedding: unique ids, no prolog, sized by the page, with a title for screen readers."""
        name = self.panel.name
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>|<style type.*?</style>", "", body, flags=re.DOTALL)
        body = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", body)
        box = re.search(r'viewBox="[^"]*"', body)
        about = f'<svg {box[0] if box else ""} role="img" aria-labelledby="t-{name}">'
        title = f'<title id="t-{name}">{escape(self.panel.alt or self.panel.title, quote=False)}</title>'
        return about + title + body[body.index(">") + 1 :]


def render_plot(picture: Picture, *, raster: bool = True) -> Plot:
    """Render the picture as SVG and PNG. Without ``raster`` the PNG is omitted, which halves the time."""
    with matplotlib.rc_context(SETTINGS):
        figure = picture.make_figure()
        svg = save_figure(figure, "svg", dpi=PAGE_DPI)
        png = save_figure(figure, "png", dpi=PAGE_DPI, pil_kwargs={"compress_level": 2}) if raster else b""
    return Plot(picture, svg.decode(), png)


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

    def plan_panel(self, name: str, kind: str, panel: Panel, **options: Any) -> PlotPlan:
        """The plan of a panel whose data are collected already."""
        return self.plan(name, kind, panel.title, len(panel.lines), lambda: panel, **options)


def _compute_bounds(panel: Panel) -> tuple[float, float]:
    """y limits that contain all values, with padding."""
    values = [v for line in panel.lines for part in (line.y, line.low, line.high) if part for v in part]
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


def _make_figure(panel: Panel) -> Figure:
    labels = [_make_label(line) for line in panel.lines]
    rows = sum(text.count("\n") + 1 for text in labels)
    axes_height = max(2.55, rows * LINE_HEIGHT + 0.2)
    figure, _ = make_titled_figure(panel, axes_height + BOTTOM, LEFT)
    height = figure.get_figheight()
    axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, AXES_WIDTH / WIDTH, axes_height / height))
    draw_frame(axes, panel)
    draw_values(axes, panel)
    label_line_ends(axes, panel, labels, LINE_HEIGHT / axes_height)
    return figure


def make_titled_figure(picture: Picture, height: float, left: float) -> tuple[Figure, float]:
    """A figure with the title and the configuration above an area of this height; and their height, in inches."""
    config_lines = textwrap.wrap(picture.config_text, CONFIG_LETTERS)
    top = TOP + CONFIG_LINE_HEIGHT * len(config_lines)
    figure = Figure(figsize=(WIDTH, top + height))
    title_style = {"fontsize": 10, "fontweight": "bold", "color": INK, "va": "top"}
    figure.text(left / WIDTH, 1 - 0.1 / (top + height), picture.title, **title_style)
    config_style = {"fontsize": 7.2, "color": FAINT, "va": "top", "linespacing": 1.15}
    figure.text(left / WIDTH, 1 - (TOP - 0.07) / (top + height), "\n".join(config_lines), **config_style)
    return figure, top


def _make_label(line: Line) -> str:
    """The wrapped label of a line with its note."""
    indent = NO_BREAK_SPACE * 2
    lines = wrap_label(line.label, lambda text: len(text) <= MAX_LETTERS, breaks=r"(?=[:|]| \()", indent=indent)
    if line.note:
        lines[-1] += indent if len(lines[-1]) + len(line.note) < MAX_LETTERS else f"\n{indent}"
        lines[-1] += line.note
    return "\n".join(lines)


def wrap_label(label: str, fits: Callable[[str], bool], *, breaks: str = r"(?=[:|])", indent: str = "") -> list[str]:
    """Split a label into lines that fit, at a regular expression, by default before options."""
    lines = [""]
    for part in re.split(breaks, label):
        if lines[-1] and not fits(lines[-1] + part):
            lines.append(indent + part.lstrip())
        else:
            lines[-1] += part
    return lines
