"""The canvas of a chart: a figure in points, with axes that cover it for texts and samples of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...results.section import PlotKind
from .labels import ChartFormat, LabelText, wrap_words
from .primitives import AXIS_WIDTH, make_artist_style
from .style import FAINT, INK, LineStyle

PADDING, LINE_GAP = 3.0, 1.16  # points: around a chart; line spacing of titles
BOLD_WIDTH = 1.2  # of bold text over that of normal text, at most
SWATCH = 17.0  # points: width of a line's sample, with the gap after it
MAX_TITLE_LETTERS = 120  # that are drawn


class Box(NamedTuple):
    """A rectangle in points."""

    left: float
    low: float
    right: float
    high: float


class Chart:
    """A figure in points, with axes that cover it for texts."""

    def __init__(self, form: ChartFormat, height: float) -> None:
        self.form, self.height = form, height
        self.figure = Figure(figsize=(form.width / 72, height / 72), dpi=72, facecolor="none")
        self.paper = self.add_axes(Box(0, 0, form.width, height))
        self.paper.set_axis_off()
        self.paper.set(xlim=(0, form.width), ylim=(0, height), zorder=5)

    def add_axes(self, box: Box) -> Axes:
        """Axes at this place."""
        width, height = self.form.width, self.height
        sides = box.left / width, box.low / height, (box.right - box.left) / width, (box.high - box.low) / height
        return self.figure.add_axes(sides)

    def write(
        self, x: float, y: float, text: str, *, faint: bool = False, bold: bool = False, ha: str = "left"
    ) -> None:
        """Write a line, vertically centered at y; faint text is small."""
        style = {"fontsize": self.form.small if faint else self.form.text, "color": FAINT if faint else INK}
        self.paper.text(x, y - 0.36 * style["fontsize"], text, ha=ha, fontweight="bold" if bold else "normal", **style)

    def write_label(self, x: float, y: float, label: LabelText, *, bold: bool = False) -> None:
        """Write a label's lines, vertically centered at y."""
        for number, runs in enumerate(label.lines):
            line_y = y + ((len(label.lines) - 1) / 2 - number) * self.form.line_height
            for run in runs:
                self.write(x + run.x, line_y, run.text, faint=run.faint, bold=bold and not run.faint)

    def draw_swatch(self, x: float, y: float, line_style: LineStyle, mark_type: PlotKind) -> None:
        """Draw a sample of a line."""
        xs = [x, x + 0.4 * SWATCH, x + 0.8 * SWATCH]
        self.paper.add_line(Line2D(xs, [y] * 3, markevery=[1], **make_artist_style(line_style, mark_type)))

    def draw_strokes(
        self, strokes: Sequence[Sequence[tuple[float, float]]], *, width: float = AXIS_WIDTH, dashes: Any = None
    ) -> None:
        """Draw grey strokes."""
        pattern = "-" if dashes is None else (0, dashes)
        for stroke in strokes:
            xs, ys = zip(*stroke, strict=True)
            self.paper.add_line(Line2D(xs, ys, color=FAINT, linewidth=width, linestyle=pattern, dash_capstyle="butt"))

    def write_head(self, title: str, config_text: str) -> float:
        """Write the title and the configuration; return the height below them."""
        y = self.height - PADDING
        for text, size in _wrap_head(title, config_text, self.form):
            y -= size * LINE_GAP
            is_title = size == self.form.title
            style: dict[str, Any] = {"fontweight": "bold", "color": INK} if is_title else {"color": FAINT}
            self.paper.text(PADDING, y, text, fontsize=size, **style)
        return y - PADDING


def measure_head(title: str, config_text: str, form: ChartFormat) -> float:
    """Height of the title and the configuration."""
    return 2 * PADDING + LINE_GAP * sum(size for _, size in _wrap_head(title, config_text, form))


def _wrap_head(title: str, config_text: str, form: ChartFormat) -> list[tuple[str, float]]:
    width, bold_size = form.width - 2 * PADDING, BOLD_WIDTH * form.title
    titles = [(text, form.title) for text in wrap_words(title[:MAX_TITLE_LETTERS], bold_size, width)]
    return [*titles, *((text, form.small) for text in wrap_words(config_text, form.small, width))]
