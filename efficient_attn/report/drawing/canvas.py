"""The canvas of a chart: a figure in points, with axes that cover it for texts and samples of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .labels import Box, ChartFormat, LabelText, wrap_words
from .panel_data import Line, PanelData
from .primitives import AXIS_WIDTH, make_artist_style
from .style import FAINT, INK

PADDING, LINE_GAP = 3.0, 1.16  # points: around a chart; line spacing of titles
BOLD_WIDTH = 1.2  # of bold text over that of normal text, at most
SWATCH = 17.0  # points: width of a line's sample, with the gap after it


@dataclass
class Chart:
    """A figure in points, with axes that cover it for texts."""

    form: ChartFormat
    height: float
    figure: Figure = field(init=False)
    paper: Axes = field(init=False)

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.form.width / 72, self.height / 72), dpi=72, facecolor="none")
        self.paper = self.add_axes(Box(0, 0, self.form.width, self.height))
        self.paper.set_axis_off()
        self.paper.set(xlim=(0, self.form.width), ylim=(0, self.height), zorder=5)

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

    def draw_swatch(self, x: float, y: float, line: Line, panel: PanelData) -> None:
        """Draw a sample of a line."""
        xs = [x, x + 0.4 * SWATCH, x + 0.8 * SWATCH]
        style = make_artist_style(line.line_style, panel.mark_type)
        self.paper.add_line(Line2D(xs, [y] * 3, markevery=[1], **style))

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
        for text in wrap_words(title, BOLD_WIDTH * self.form.title, self.form.width - 2 * PADDING) if title else []:
            y -= self.form.title * LINE_GAP
            self.paper.text(PADDING, y, text, fontsize=self.form.title, fontweight="bold", color=INK)
        for text in wrap_words(config_text, self.form.small, self.form.width - 2 * PADDING):
            y -= self.form.small * LINE_GAP
            self.paper.text(PADDING, y, text, fontsize=self.form.small, color=FAINT)
        return y - PADDING


def measure_head(title: str, config_text: str, form: ChartFormat) -> float:
    """Height of the title and the configuration."""
    titles = len(wrap_words(title, BOLD_WIDTH * form.title, form.width - 2 * PADDING)) if title else 0
    configs = len(wrap_words(config_text, form.small, form.width - 2 * PADDING))
    return 2 * PADDING + LINE_GAP * (titles * form.title + configs * form.small)
