"""Figures for papers: width of a column, text size of a paper, embeddable fonts, no title."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import matplotlib

from .figures import SETTINGS, FigureFormat, Panel, format_svg, save_figure
from .labels import ChartFormat
from .layout import make_chart
from .svg_renderer import draw_svg

MIN_WIDTH, MAX_WIDTH = 1.5, 20.0  # inches
LARGE_TEXT_WIDTH = 4.5  # inches; wider figures have larger text
DPI = 300
# TrueType in PDFs: publishers reject Type 3 fonts, matplotlib's default
PRINT_SETTINGS: Any = SETTINGS | {"pdf.fonttype": 42}


def choose_format(width: float) -> ChartFormat:
    """Text sizes for a width in inches."""
    text = 8.0 if width >= LARGE_TEXT_WIDTH else 7.2
    return ChartFormat(72 * width, text, text - 0.5, text + 1.0)


def render_print_figure(
    panel: Panel, form: FigureFormat, *, width: float, bold: Collection[str] = (), with_config: bool = True
) -> bytes:
    """Render the panel in this format. width: inches. bold: labels of highlighted lines. with_config: whether to draw
    the configuration, for captions that do not have it."""
    resolved = panel.resolve() if with_config else replace(panel.resolve(), config_text="")
    with matplotlib.rc_context(PRINT_SETTINGS):
        figure = make_chart(resolved, choose_format(width), titled=False, bold=bold)
        if form == "svg":
            return format_svg(*draw_svg(figure), panel.title, panel.config_text).encode()
        options = {"facecolor": "white"} if form == "png" else {}
        return save_figure(figure, form, dpi=DPI, title=panel.title, subject=panel.config_text, **options)
