"""Figures for papers: width of a column, text size of a paper, embeddable fonts, no title.

Labels are at the line ends if there is room, else in a legend below; in dot plots they are on the left.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.textpath import TextPath

from .axes import compute_x_limits, thin_ticks
from .figures import SETTINGS, FigureFormat, Panel, save_figure, wrap_label
from .primitives import draw_frame, draw_values, label_line_ends, make_artist_style
from .style import FAINT, INK

MIN_WIDTH, MAX_WIDTH = 1.5, 20.0  # inches
LARGE_TEXT_WIDTH = 4.5  # inches; wider figures have larger text
TEXT_SIZES, CONFIG_TEXT_SIZE = (7.0, 8.0), 5.4  # points: text of narrow and wide figures; the configuration
AXES_ASPECT, NAME_ROW_HEIGHT = 0.62, 0.165  # axes' height over width; inches of a line of names
HANDLE_WIDTH = 0.42  # inches of a legend handle
RIGHT_NAMES_SHARE, LEFT_NAMES_SHARE, BELOW_NAMES_SHARE = 0.36, 0.4, 0.75  # maximum width of names, over the width
DPI = 300
# TrueType in PDFs: publishers reject Type 3 fonts, matplotlib's default
PRINT_SETTINGS: Any = SETTINGS | {"pdf.fonttype": 42, "axes.linewidth": 0.6, "lines.markersize": 3.6}


def render_print_figure(
    panel: Panel, form: FigureFormat, *, width: float, bold: Collection[str] = (), with_config: bool = True
) -> bytes:
    """Render the panel in this format. width: inches. bold: labels of highlighted lines. with_config: whether to draw
    the configuration, for captions that do not have it."""
    resolved = panel.resolve()
    # in the order of their ends
    resolved = replace(resolved, lines=tuple(sorted(resolved.lines, key=lambda line: -line.y[-1])))
    with matplotlib.rc_context(PRINT_SETTINGS | {"font.size": TEXT_SIZES[width >= LARGE_TEXT_WIDTH]}):
        figure = _make_figure(resolved if with_config else replace(resolved, config_text=""), width, bold)
        return save_figure(figure, form, dpi=DPI, title=panel.title, subject=panel.config_text)


def _make_figure(panel: Panel, width: float, bold: Collection[str]) -> Figure:
    size, is_dot_plot = TEXT_SIZES[width >= LARGE_TEXT_WIDTH], not panel.ylabel
    names = _make_names(panel, size, (LEFT_NAMES_SHARE if is_dot_plot else BELOW_NAMES_SHARE) * width)
    longest = max(_measure_width(part, size) for name in names for part in name.split("\n"))
    names_at_right = not is_dot_plot and longest + HANDLE_WIDTH <= RIGHT_NAMES_SHARE * width
    names_per_row = 1 if is_dot_plot or names_at_right else max(1, int(width / (longest + HANDLE_WIDTH + 0.1)))
    rows_below = 0 if is_dot_plot or names_at_right else math.ceil(len(names) / names_per_row)
    row_height = NAME_ROW_HEIGHT * max(name.count("\n") + 0.9 for name in names)
    axes_height = (
        row_height * max(len(names), 3)
        if is_dot_plot
        else max(AXES_ASPECT * width * (0.85 if names_at_right else 1), 1.2, row_height * len(names))
    )
    config_text = textwrap.wrap(panel.config_text, int(width * 72 / CONFIG_TEXT_SIZE / 0.58), break_on_hyphens=False)
    figure = Figure(
        figsize=(width, axes_height + 0.5 + NAME_ROW_HEIGHT * rows_below + 0.09 * len(config_text)),
        layout="constrained",
    )
    axes = figure.add_subplot()
    draw_frame(axes, panel)
    _set_x_ticks(axes, panel, width - longest if is_dot_plot or names_at_right else width)
    draw_values(axes, panel, bold)
    if config_text:
        style = {"fontsize": CONFIG_TEXT_SIZE, "color": FAINT, "linespacing": 1.15}
        figure.suptitle("\n".join(config_text), x=0.02, ha="left", **style)
    if is_dot_plot:
        texts = _draw_row_names(axes, panel, names)
    elif names_at_right:
        label_line_ends(axes, panel, names, NAME_ROW_HEIGHT / axes_height, size)
        texts = axes.texts
    else:
        handles = [Line2D([], [], **make_artist_style(line.line_style, panel.mark_type)) for line in panel.lines]
        legend = figure.legend(
            handles, names, loc="outside lower center", ncols=names_per_row, frameon=False, fontsize=size
        )
        texts = legend.get_texts()
    for line, text in zip(panel.lines, texts, strict=True):
        text.set_fontweight("bold" if line.label in bold else "normal")
    return figure


def _make_names(panel: Panel, size: float, most: float) -> list[str]:
    """Label of each line, at most this many inches wide; in dot plots wrapped before options."""
    if panel.ylabel:
        return [f"{_truncate(line.label, size, most)}  {line.note}".rstrip() for line in panel.lines]
    wrapped = [wrap_label(line.label, lambda text: _measure_width(text, size) <= most) for line in panel.lines]
    return ["\n".join(_truncate(part, size, most) for part in parts) for parts in wrapped]


def _truncate(text: str, size: float, most: float) -> str:
    """Truncate a text to this width; the caption and the table have all of it."""
    count = len(text)
    while count > 1 and _measure_width(text[:count], size) > most:
        count = count * 9 // 10
    return text if count == len(text) else f"{text[:count].rstrip()}\u2026"


def _measure_width(text: str, size: float) -> float:
    """Width of a text in inches."""
    return TextPath((0, 0), text, size=size).get_extents().width / 72


def _set_x_ticks(axes: Axes, panel: Panel, axes_width: float) -> None:
    """Replace the x ticks by as many as fit, and use a thinner grid than on a page."""
    limits = compute_x_limits(panel.ticks, log=panel.log_x, margin=panel.margin)
    ticks = thin_ticks(panel.ticks, limits, log=panel.log_x, letter_scale=2.2 / max(axes_width - 0.5, 0.6))
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.grid(True, linewidth=0.5)


def _draw_row_names(axes: Axes, panel: Panel, names: Sequence[str]) -> list[Text]:
    """Draw the names of a dot plot on the left and the notes on the right."""
    axes.set_yticks([line.y[0] for line in panel.lines], names)
    axes.tick_params(axis="y", length=0)
    right = axes.get_yaxis_transform()
    for line in panel.lines:
        axes.text(1.02, line.y[0], line.note, transform=right, va="center", color=INK)
    return list(axes.get_yticklabels())
