"""Figures for papers: width of a column, text size of a paper, embeddable fonts, no title, a limited height."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import matplotlib

from .figures import SETTINGS, FigureFormat, format_svg, save_figure
from .labels import ChartFormat
from .panel_data import Panel
from .small_multiples import draw_panels, share_axes
from .style import FAINT, MARKERS, LineStyle, LineStyles
from .svg_renderer import draw_svg

MIN_WIDTH, MAX_WIDTH = 1.5, 20.0  # inches
WIDE_FROM = 4.5  # inches: wider figures span two columns, and have larger text
MAX_ASPECT = 1.2  # height over width
DPI = 300
# TrueType in PDFs: publishers reject Type 3 fonts, matplotlib's default
PRINT_SETTINGS: Any = SETTINGS | {"pdf.fonttype": 42}


def render_print_figure(
    panels: Sequence[Panel],
    form: FigureFormat,
    *,
    width: float,
    bold: Collection[str] = (),
    titles: Sequence[str] = (),
    with_config: bool = True,
) -> list[bytes]:
    """Render the panels in this format; dot plots with many rows as several pages.

    width: inches. bold: labels of highlighted lines. titles: of several panels. with_config: whether to draw the
    configuration of the first panel, for captions that do not have it."""
    options = {"title": "", "config_text": panels[0].config_text if with_config else ""}
    untitled = share_axes([replace(panel, **options) for panel in panels])
    pages = []
    with matplotlib.rc_context(PRINT_SETTINGS):
        for figure in draw_panels(untitled, choose_format(width), titles, bold):
            if form == "svg":
                pages.append(format_svg(*draw_svg(figure), panels[0].title, panels[0].config_text).encode())
                continue
            about = {"title": panels[0].title, "subject": panels[0].config_text}
            options = {"facecolor": "white"} if form == "png" else {}
            pages.append(save_figure(figure, form, dpi=DPI, **about, **options))
    return pages


def choose_format(width: float) -> ChartFormat:
    """Text sizes for a width in inches."""
    text = 8.0 if width >= WIDE_FROM else 7.2
    return ChartFormat(72 * width, text, text - 0.5, text + 1.0, MAX_ASPECT)


def grey_out(line_styles: LineStyles, bold: Collection[str]) -> dict[str, LineStyle]:
    """Make all mechanisms grey except highlighted ones. Colors no longer distinguish them, so a marker that another
    mechanism has is replaced by a free one, or else by a free combination of marker and fill."""
    used: set[tuple[str, bool]] = set()
    styles = {}
    for label, style in sorted(line_styles.items(), key=lambda item: item[0] not in bold):
        pairs = [(marker, hollow) for hollow in (style.hollow, not style.hollow) for marker in (style.marker, *MARKERS)]
        markers = {marker for marker, _ in used}
        free = [pair for pair in pairs if pair not in used]
        marker, hollow = next((pair for pair in free if pair[0] not in markers), (free or pairs)[0])
        used.add((marker, hollow))
        colour = style.colour if label in bold else FAINT
        styles[label] = style._replace(colour=colour, marker=marker, hollow=hollow)
    return styles
