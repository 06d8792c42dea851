"""One panel as SVG and PNG: lines with intervals, and each line's name at its end instead of a legend to look up.

matplotlib's objects only, never pyplot: no global figure, no window, and the same bytes for the same rows.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from ... import units
from .style import FAINT, GRID, INK, Look

WIDTH, LEFT, AXES, TOP, BOTTOM, LINE = 5.85, 0.92, 2.6, 0.36, 0.52, 0.158  # inches; LINE is a label's line of text
SPACE = "\u00a0"  # an SVG would drop plain spaces at a line's start
# svg.hashsalt makes ids a function of the content; text stays text, so that it can be found and read aloud
SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    "text.hinting": "no_hinting",
    "svg.hashsalt": "efficient-attn",
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Line:
    """One variant's values. note: what the label adds to the name, such as the fitted exponent."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """What one plot shows. kind: plots of one kind stand together. unit: time, bytes, ratio or error.

    ticks: where the x axis has a mark and what it says. bounds: y limits, where its neighbours share them.
    """

    name: str
    kind: str
    title: str
    caption: str
    xlabel: str
    ylabel: str
    unit: str
    lines: tuple[Line, ...]
    ticks: dict[float, str]
    log_x: bool = True
    level: float | None = None
    bounds: tuple[float, float] | None = None
    alt: str = ""


@dataclass(frozen=True)
class Plot:
    """A drawn panel: the SVG goes into the page, both files beside it."""

    panel: Panel
    svg: str
    png: bytes = field(repr=False)

    @property
    def inline(self) -> str:
        """The SVG as a part of a page: every id its own, no prolog, sized by the page, described for screen readers."""
        name = self.panel.name
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
        body = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", body)
        box = re.search(r'viewBox="[^"]*"', body)
        about = f'<svg {box[0] if box else ""} role="img" aria-labelledby="t-{name}">'
        title = f'<title id="t-{name}">{_escaped(self.panel.alt or self.panel.title)}</title>'
        return about + title + body[body.index(">") + 1 :]


def draw(panel: Panel) -> Plot:
    """The panel drawn twice from one figure."""
    panel = replace(panel, bounds=panel.bounds or bounds(panel.lines, panel.level))
    with matplotlib.rc_context(SETTINGS):
        figure = _figure(panel)
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None}, pil_kwargs={"compress_level": 2})
    return Plot(panel, svg.getvalue(), png.getvalue())


def bounds(lines: Sequence[Line], level: float | None = None) -> tuple[float, float]:
    """y limits that hold all values with a little air, on a logarithmic axis."""
    return limits([v for line in lines for part in (line.y, line.low, line.high) if part for v in part], level)


def limits(found: Iterable[float], level: float | None = None) -> tuple[float, float]:
    """Limits that hold these values, those that a logarithm has, with a little air."""
    values = [v for v in found if v > 0] + ([level] if level else [])
    low, high = min(values, default=1.0), max(values, default=1.0)
    air = max((high / low) ** 0.06, 1.12)
    return low / air, high * air


def _figure(panel: Panel) -> Figure:
    labels = [_wrapped(line) for line in panel.lines]
    rows = sum(text.count("\n") + 1 for text in labels)
    tall = max(2.55, rows * LINE + 0.2)
    height = tall + TOP + BOTTOM
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, AXES / WIDTH, tall / height))
    _frame(axes, panel)
    title = {"fontsize": 10, "fontweight": "bold", "color": INK, "va": "top", "parse_math": False}
    figure.text(LEFT / WIDTH, 1 - 0.1 / height, panel.title, **title)
    if panel.level is not None:
        axes.axhline(panel.level, color=INK, linewidth=0.9, zorder=1.5)
    _intervals(axes, panel.lines)
    for line in panel.lines:
        axes.add_line(Line2D(line.x, line.y, zorder=3, markevery=_every(line), **_pen(line.look)))
    _name_ends(axes, panel, labels, LINE / tall)
    return figure


def _frame(axes: Axes, panel: Panel) -> None:
    """Scales, ticks at the lengths that were measured, and a quiet grid."""
    assert panel.bounds is not None
    axes.set_xlabel(panel.xlabel, color=INK)
    axes.set_ylabel(panel.ylabel, color=INK)
    if panel.log_x:
        axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(*_x_limits(panel))
    axes.set_ylim(*panel.bounds)
    ticks = _y_ticks(panel.unit, *panel.bounds)
    for axis, found in ((axes.xaxis, _thinned(panel)), (axes.yaxis, ticks)):
        axis.set_major_locator(FixedLocator(list(found)))
        axis.set_major_formatter(FixedFormatter(list(found.values())))
        axis.set_minor_locator(NullLocator())
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, labelcolor=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def _intervals(axes: Axes, lines: Sequence[Line]) -> None:
    """All intervals, as bars and as bands between them; one artist each, which costs less than many."""
    bands, bars, fills, colours = [], [], [], []
    for line in lines:
        if line.low and line.high:
            ends = list(zip(line.x, line.low, line.high, strict=True))
            bands.append([(x, low) for x, low, _ in ends] + [(x, high) for x, _, high in reversed(ends)])
            few = ends[:: _every(line)]
            bars += [[(x, low), (x, high)] for x, low, high in few]
            fills.append(line.look.colour)
            colours += [line.look.colour] * len(few)
    axes.add_collection(PolyCollection(bands, facecolors=fills, alpha=0.16, linewidths=0, zorder=2), autolim=False)
    axes.add_collection(LineCollection(bars, colors=colours, linewidths=1.1, zorder=2.5), autolim=False)


def _every(line: Line) -> int:
    """Of how many points one gets a marker: more than two dozen would run together."""
    return math.ceil(len(line.x) / 24)


def _pen(look: Look) -> dict[str, Any]:
    return {
        "color": look.colour,
        "linestyle": look.line,
        "linewidth": 1.5,
        "marker": look.marker or "None",
        "markersize": 4.6,
        "markerfacecolor": "white" if look.hollow else look.colour,
        "markeredgecolor": look.colour,
        "markeredgewidth": 1.1,
    }


def _name_ends(axes: Axes, panel: Panel, labels: Sequence[str], step: float) -> None:
    """Each line's name beside its last point, moved as little as keeps names apart, with a thread back to the point."""
    assert panel.bounds is not None
    across = [_share(line.x[-1], *_x_limits(panel), log=panel.log_x) for line in panel.lines]
    up = [_share(line.y[-1], *panel.bounds) for line in panel.lines]
    places = spread(up, [(text.count("\n") + 1) * step for text in labels])
    free = {"transform": axes.transAxes, "clip_on": False}
    threads = [[(x, y), (1.015, y), (1.04, at)] for x, y, at in zip(across, up, places, strict=True)]
    colours = [line.look.colour for line in panel.lines]
    axes.add_artist(LineCollection(threads, colors=colours, linewidths=0.6, alpha=0.6, **free))
    for line, text, at in zip(panel.lines, labels, places, strict=True):
        axes.add_artist(Line2D([1.045, 1.08, 1.115], [at, at, at], markevery=[1], **_pen(line.look), **free))
        style = {"fontsize": 8.7, "color": INK, "va": "center", "linespacing": 1.12, "parse_math": False}
        axes.text(1.135, at, text, transform=axes.transAxes, **style)


def spread(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Places near the wanted ones, in [0, 1], whose spans do not overlap."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    floor = 0.0
    for i in order:
        placed[i] = max(wanted[i], floor + heights[i] / 2)
        floor = placed[i] + heights[i] / 2
    ceiling = 1.0
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling - heights[i] / 2)
        ceiling = placed[i] - heights[i] / 2
    return placed


def _share(value: float, low: float, high: float, *, log: bool = True) -> float:
    """Where a value lies between two limits, from 0 to 1."""
    scale: Callable[[float], float] = math.log if log else float
    return (scale(value) - scale(low)) / (scale(high) - scale(low))


def _x_limits(panel: Panel) -> tuple[float, float]:
    low, high = min(panel.ticks), max(panel.ticks)
    if not panel.log_x:
        return low - 0.35, high + 0.35
    air = max((high / low) ** 0.04, 1.05)
    return low / air, high * air


def _thinned(panel: Panel) -> dict[float, str]:
    """As many of the measured lengths as can be read side by side, the longest among them."""
    low, high = _x_limits(panel)
    kept: list[float] = []
    for value in sorted(panel.ticks, reverse=True):
        letters = len(panel.ticks[value]) + len(panel.ticks[kept[-1]]) if kept else 0
        near = _share(value, low, high, log=panel.log_x) + 0.015 * letters + 0.03
        if not kept or near < _share(kept[-1], low, high, log=panel.log_x):
            kept.append(value)
    return {value: panel.ticks[value] for value in reversed(kept)}


def _y_ticks(unit: str, low: float, high: float) -> dict[float, str]:
    """Round values between the limits, at most eight or so, in words."""
    say = units.WRITERS[unit]
    if unit == "bytes":
        first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
        step = max(1, math.ceil((last - first + 1) / 7))
        found = [2.0**e for e in range(first, last + 1) if e % step == 0]
    else:
        found = _decimal_ticks(low, high)
    return {value: _short(say(value)) for value in found}


def _decimal_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    steps = next((steps for most, steps in _STEPS if decades < most), (1,))
    skip = max(1, math.ceil(decades / 8))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [float(f"{s}e{e}") for e in powers if e % skip == 0 for s in steps if low <= float(f"{s}e{e}") <= high]


# how many decades an axis spans at most for these digits to be its marks
_STEPS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0.35, (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)),
    (0.75, (1, 1.5, 2, 3, 4, 5, 7)),
    (2.6, (1, 2, 5)),
)


def _short(text: str) -> str:
    """``1.00 ms`` as ``1 ms``: an axis needs no zeros behind the point."""
    return re.sub(r"(\.\d*?)0+(?=\D|$)", r"\1", text, count=1).replace(". ", " ").replace(".x", "x").rstrip(".")


def _wrapped(line: Line) -> str:
    """A label in lines of about 26 characters, broken where an option begins."""
    wide, out = 26, [""]
    for part in re.split(r"(?=[:|]| \()", line.label):
        if out[-1] and len(out[-1]) + len(part) > wide:
            out.append(SPACE * 2 + part.lstrip())
        else:
            out[-1] += part
    if line.note:
        apart = SPACE * 2 if len(out[-1]) + len(line.note) < wide else "\n" + SPACE * 2
        out[-1] += apart + line.note
    return "\n".join(out)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
