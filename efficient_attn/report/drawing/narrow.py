"""A plot as a paper has it: as wide as a column, letters of the size of its text, fonts that printers take, no title.

Names stand at the lines' ends where there is room, else below. Points above each other have theirs at the left.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedFormatter, FixedLocator

from ...results.marks import MARK
from .axes import thin, x_limits
from .figures import SETTINGS, Panel
from .strokes import draw_frame, draw_values, name_ends, pen
from .style import FAINT, INK

Form = Literal["pdf", "svg", "png"]
FORMS: tuple[Form, ...] = ("pdf", "svg", "png")
LEAST, MOST = 1.5, 20.0  # inches
WIDE = 4.5  # inches from which on letters are larger
TEXT, PLACE = (7.0, 8.0), 5.4  # points: letters in a column and wider, and the line about the place
TALL, ROW = 0.62, 0.165  # of the width: the axes' height; inches: a line of names
HANDLE = 0.42  # inches that a legend's mark takes beside its name
BESIDE, ROWS, WHOLE = 0.36, 0.4, 0.75  # of the width, for names at the right, at the left in lines, and below at most
DPI = 300
# TrueType in PDFs: publishers refuse the fonts of type 3 that would be there otherwise
PRINTED: Any = SETTINGS | {"pdf.fonttype": 42, "axes.linewidth": 0.6, "lines.markersize": 3.6}


def draw(panel: Panel, form: Form, *, width: float, bold: Collection[str] = (), told: bool = True) -> bytes:
    """The panel as a file of this form. width: inches. bold: labels whose lines stand out. told: whether the place
    stands above it, as it must where the caption does not say it."""
    settled = panel.settle()
    settled = replace(settled, lines=tuple(sorted(settled.lines, key=lambda line: -line.y[-1])))  # as at their ends
    with matplotlib.rc_context(PRINTED | {"font.size": TEXT[width >= WIDE]}):
        figure = _make_figure(settled if told else replace(settled, place=""), width, bold)
        out = io.BytesIO()
        said: dict[Form, dict[str, str | None]] = {
            "pdf": {"Creator": MARK, "Title": panel.title, "Subject": panel.place, "CreationDate": None},
            "svg": {"Creator": MARK, "Title": panel.title, "Date": None},
            "png": {"Software": MARK, "Title": panel.title, "Description": panel.place},
        }
        figure.savefig(out, format=form, dpi=DPI, metadata=said[form])
    return out.getvalue()


def _make_figure(panel: Panel, width: float, bold: Collection[str]) -> Figure:
    size, rows = TEXT[width >= WIDE], not panel.ylabel  # rows: points above each other
    names = _name_lines(panel, size, (ROWS if rows else WHOLE) * width)
    longest = max(_measure(part, size) for name in names for part in name.split("\n"))
    beside = not rows and longest + HANDLE <= BESIDE * width
    across = 1 if rows or beside else max(1, int(width / (longest + HANDLE + 0.1)))
    below = 0 if rows or beside else math.ceil(len(names) / across)
    high = ROW * max(name.count("\n") + 0.9 for name in names)  # of a row
    tall = high * max(len(names), 3) if rows else max(TALL * width * (0.85 if beside else 1), 1.2, high * len(names))
    place = textwrap.wrap(panel.place, int(width * 72 / PLACE / 0.58), break_on_hyphens=False)
    figure = Figure(figsize=(width, tall + 0.5 + ROW * below + 0.09 * len(place)), layout="constrained")
    axes = figure.add_subplot()
    draw_frame(axes, panel)
    _set_marks(axes, panel, width - longest if rows or beside else width)
    draw_values(axes, panel, bold)
    if place:
        above = {"fontsize": PLACE, "color": FAINT, "linespacing": 1.15}
        figure.suptitle("\n".join(place), x=0.02, ha="left", **above)
    if rows:
        written = _name_rows(axes, panel, names)
    elif beside:
        name_ends(axes, panel, names, ROW / tall, size)
        written = axes.texts
    else:
        handles = [Line2D([], [], **pen(line.look, panel.drawn)) for line in panel.lines]
        legend = figure.legend(handles, names, loc="outside lower center", ncols=across, frameon=False, fontsize=size)
        written = legend.get_texts()
    for line, text in zip(panel.lines, written, strict=True):
        text.set_fontweight("bold" if line.label in bold else "normal")
    return figure


def _name_lines(panel: Panel, size: float, most: float) -> list[str]:
    """What each line is called; where points stand above each other, in lines of about so many inches."""
    if panel.ylabel:
        return [f"{_cut(line.label, size, most)}  {line.note}".rstrip() for line in panel.lines]
    return [_break(line.label, size, most) for line in panel.lines]


def _break(label: str, size: float, most: float) -> str:
    """The label, in several lines where it is too wide: a line ends where an option begins."""
    out = [""]
    for part in re.split(r"(?=[:|])", label):
        if out[-1] and _measure(out[-1] + part, size) > most:
            out.append(part)
        else:
            out[-1] += part
    return "\n".join(_cut(part, size, most) for part in out)


def _cut(text: str, size: float, most: float) -> str:
    """As much of a text as there is room for; the caption and the table have all of it."""
    count = len(text)
    while count > 1 and _measure(text[:count], size) > most:
        count = count * 9 // 10
    return text if count == len(text) else f"{text[:count].rstrip()}\u2026"


def _measure(text: str, size: float) -> float:
    """Inches that a text is wide."""
    return TextPath((0, 0), text, size=size).get_extents().width / 72


def _set_marks(axes: Axes, panel: Panel, wide: float) -> None:
    """The x axis' marks again, as many as there is room for; and what draws less ink than a page's."""
    across = x_limits(panel.ticks, log=panel.log_x, margin=panel.margin)
    found = thin(panel.ticks, across, log=panel.log_x, wide=2.2 / max(wide - 0.5, 0.6))
    axes.xaxis.set_major_locator(FixedLocator(list(found)))
    axes.xaxis.set_major_formatter(FixedFormatter(list(found.values())))
    axes.grid(True, linewidth=0.5)


def _name_rows(axes: Axes, panel: Panel, names: Sequence[str]) -> list[Text]:
    """Names at the left of points above each other, and at the right what is noted of each."""
    axes.yaxis.set_major_locator(FixedLocator([line.y[0] for line in panel.lines]))
    axes.yaxis.set_major_formatter(FixedFormatter(names))
    axes.tick_params(axis="y", length=0)
    right = axes.get_yaxis_transform()
    for line in panel.lines:
        axes.text(1.02, line.y[0], line.note, transform=right, va="center", color=INK)
    return list(axes.get_yticklabels())
