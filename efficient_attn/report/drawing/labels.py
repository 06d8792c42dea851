"""Texts of labels: name in ink, options small and grey, measured so that nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from .. import formatting
from .panel_data import Line
from .svg_renderer import SMALL_TEXT_SIZE, TEXT_SIZE, TITLE_SIZE

RUN_GAP, INDENT = 4.0, 5.0  # points: between the parts of a label; of its further lines
LINE_HEIGHT = 1.22  # over the text size
ELLIPSIS = "\u2026"


class ChartFormat(NamedTuple):
    """Width and text sizes of a chart, in points. aspect: its largest height over its width."""

    width: float
    text: float
    small: float
    title: float
    aspect: float = 1.6

    @property
    def line_height(self) -> float:
        """Height of a line of a label."""
        return self.text * LINE_HEIGHT


PAGE_FORMAT = ChartFormat(270.0, TEXT_SIZE, SMALL_TEXT_SIZE, TITLE_SIZE)  # legible in a phone's column


class LabelRun(NamedTuple):
    """A part of a label's line. x: offset in points. faint: whether it is an option."""

    text: str
    x: float
    faint: bool


class LabelText(NamedTuple):
    """A label's lines, and its width in points."""

    lines: tuple[tuple[LabelRun, ...], ...]
    width: float

    @property
    def is_complete(self) -> bool:
        """Whether no text was cut."""
        return not any(run.text.endswith(ELLIPSIS) for runs in self.lines for run in runs)


@lru_cache(maxsize=4096)
def measure_width(text: str, size: float) -> float:
    """Width of a text in points."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)
    return float(width)


def truncate(text: str, size: float, most: float) -> str:
    """A text that is at most this wide; the caption and the table have all of it."""
    if measure_width(text, size) <= most:
        return text
    letter_count = next((n for n in range(len(text) - 1, 0, -1) if measure_width(text[:n] + ELLIPSIS, size) <= most), 0)
    return text[:letter_count].rstrip() + ELLIPSIS


def wrap_words(text: str, size: float, most: float) -> list[str]:
    """Lines of at most this width; a single word that is wider is truncated."""
    lines: list[str] = []
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and measure_width(joined, size) <= most:
            lines[-1] = joined
        else:
            lines.append(truncate(word, size, most))
    return lines


def lay_out_label(line: Line, form: ChartFormat, most: float, *, max_lines: int = 3) -> LabelText:
    """The label of a line within this width. More options than fit end in an ellipsis."""
    lines: list[list[LabelRun]] = [[]]
    end = 0.0
    for text, faint in _split_label(line):
        size = form.small if faint else form.text
        x = end + RUN_GAP if lines[-1] else 0.0
        if lines[-1] and x + measure_width(text, size) > most:
            if len(lines) == max_lines:
                last = lines[-1][-1]
                room = most - last.x - measure_width(ELLIPSIS, form.text)
                cut = truncate(last.text, form.text, room).removesuffix(ELLIPSIS) + ELLIPSIS
                lines[-1][-1] = last._replace(text=cut)
                break
            lines.append([])
            x = INDENT
        fitted = truncate(text, size, most - x)
        lines[-1].append(LabelRun(fitted, x, faint))
        end = x + measure_width(fitted, size)
    ends = (run.x + measure_width(run.text, form.small if run.faint else form.text) for runs in lines for run in runs)
    return LabelText(tuple(map(tuple, lines)), max(ends, default=0.0))


def make_number_label(number: str, form: ChartFormat) -> LabelText:
    """A label that is explained in the list below the plot."""
    return LabelText(((LabelRun(number, 0.0, False),),), measure_width(number, form.text))


def _split_label(line: Line) -> Iterator[tuple[str, bool]]:
    """The parts of a label, and whether each is an option; the note follows the name."""
    spec, *distinctions = line.label.split(" (")
    (name, options), *others = formatting.split_label(spec)
    runs = [(name, False), *((option, True) for option in options)]
    for other, other_options in others:
        runs += [(f"|{other}", False), *((option, True) for option in other_options)]
    runs += [(f"({text}", True) for text in distinctions]
    runs.insert(len(runs) if others else 1, (line.note, False))
    return ((text, faint) for text, faint in runs if text)
