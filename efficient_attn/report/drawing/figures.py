"""Rendering of pictures as SVG and PNG.

Uses matplotlib's objects and not pyplot: no global state, no window, and the same bytes for the same rows.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from ...results.file_marks import MARK
from ...results.sanitize import sanitize_line
from .. import formatting
from .heatmap import Heatmap
from .labels import PAGE_FORMAT
from .panel_data import Panel, Picture
from .small_multiples import draw_panels
from .style import LineStyles, make_chart_sheet
from .svg_renderer import draw_svg

FigureFormat = Literal["pdf", "svg", "png"]

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


@dataclass(frozen=True)
class Plot:
    """A rendered picture. body: elements of its SVG."""

    panel: Picture
    view_box: str
    body: str
    png: bytes = field(repr=False)

    @property
    def inline(self) -> str:
        """The SVG for pages, which have the style sheet of all charts."""
        return _wrap_svg(self.view_box, self.body, self.panel.alt)

    @property
    def svg(self) -> str:
        """The SVG as a file of its own."""
        return format_svg(self.view_box, self.body, self.panel.alt)


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


def make_figure(picture: Picture) -> Figure:
    """A panel or heatmap as a matplotlib figure."""
    if isinstance(picture, Heatmap):
        return picture.draw()
    assert isinstance(picture, Panel)
    form = PAGE_FORMAT._replace(aspect=math.inf) if picture.is_dot_plot else PAGE_FORMAT  # on one page
    (figure,) = draw_panels([picture.resolve()], form)
    return figure


def render_plot(picture: Picture, *, raster: bool = True) -> Plot:
    """Render the picture as SVG and PNG. Without ``raster`` the PNG is omitted, which halves the time."""
    with matplotlib.rc_context(SETTINGS):
        figure = make_figure(picture)
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
class PlotContext:
    """What all plots of a setting share: line styles by label, the suffix of file names, and the configuration."""

    line_styles: LineStyles
    suffix: str = ""
    config_text: str = ""

    def name_parts(self, picture: Picture | None, kind: str, *names: object, **fields: Any) -> Iterator[Picture]:
        """The picture, or several if it would be too large, with their names; nothing for None. fields: others."""
        for text, part in picture.split() if picture else ():
            title, name = ", ".join(filter(None, (part.title, text))), formatting.make_slug(*names, text, self.suffix)
            yield replace(part, name=name, kind=kind, title=title, config_text=self.config_text, **fields)
