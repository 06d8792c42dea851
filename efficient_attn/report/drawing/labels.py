"""Texts of labels and their positions: name in ink, options small and grey, measured so that nothing overlaps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from .. import formatting
from .panel_data import Line

RUN_GAP, INDENT = 4.0, 5.0  # points: between the parts of a label; of its further lines
LINE_HEIGHT = 1.22  # over the text size
ELLIPSIS = "\u2026"
GAPS = 5.0, 11.0, 20.0, 32.0, 48.0, 66.0  # points: distances of a label from its point, preferred first
CROWDED = 30.0  # points: distance of points that compete for places
LEADER_LENGTH, LEADER_START = 9.0, 4.5  # points: a label farther from its point has a stroke; where that starts


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


class LabelRun(NamedTuple):
    """A part of a label's line. x: offset in points. faint: whether it is an option."""

    text: str
    x: float
    faint: bool


class LabelText(NamedTuple):
    """A label's lines, its width in points, and whether its text is complete."""

    lines: tuple[tuple[LabelRun, ...], ...]
    width: float
    complete: bool


class Box(NamedTuple):
    """A rectangle in points."""

    left: float
    low: float
    right: float
    high: float

    def overlaps(self, other: Box) -> bool:
        """Whether the rectangles share an area."""
        return self.left < other.right and other.left < self.right and self.low < other.high and other.low < self.high

    def contains(self, other: Box) -> bool:
        """Whether another rectangle lies inside."""
        return (
            self.left <= other.left and other.right <= self.right and self.low <= other.low and other.high <= self.high
        )


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
    end, complete = 0.0, True
    for text, faint in _split_label(line):
        size = form.small if faint else form.text
        width, indent = measure_width(text, size), INDENT if len(lines) > 1 or lines[0] else 0.0
        x = end + RUN_GAP if lines[-1] else 0.0
        if lines[-1] and x + width > most:
            if len(lines) == max_lines:
                complete = False
                continue
            lines.append([])
            x = indent
        fitted = truncate(text, size, most - x)
        complete &= fitted == text
        lines[-1].append(LabelRun(fitted, x, faint))
        end = x + measure_width(fitted, size)
    if not complete and not lines[-1][-1].text.endswith(ELLIPSIS):
        last = lines[-1][-1]
        room = most - last.x - measure_width(ELLIPSIS, form.text)
        lines[-1][-1] = last._replace(text=truncate(last.text, form.text, room).removesuffix(ELLIPSIS) + ELLIPSIS)
    ends = (run.x + measure_width(run.text, form.small if run.faint else form.text) for runs in lines for run in runs)
    return LabelText(tuple(map(tuple, lines)), max(ends, default=0.0), complete)


def make_number_label(number: str, form: ChartFormat) -> LabelText:
    """A label that is explained in the list below the plot."""
    return LabelText(((LabelRun(number, 0.0, False),),), measure_width(number, form.text), True)


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


def place_beside(
    points: Sequence[tuple[float, float]],
    forms: Sequence[Sequence[tuple[float, float]]],
    markers: Sequence[Box],
    strokes: Sequence[Box],
    rooms: Sequence[Box],
) -> list[tuple[int, float, float] | None]:
    """For each point the first form of its label that fits beside it, and the label's left end and middle.

    forms: width and height of each form, preferred first. markers, strokes: must not be covered by labels; markers not
    by leaders either. rooms: where the label of each point may stand. None if there is no free place.
    """

    def place_in_order(order: Sequence[int]) -> list[tuple[int, float, float] | None]:
        occupied = list(markers)  # by markers, labels and leaders
        placed: list[tuple[int, float, float] | None] = [None] * len(points)
        for i in order:
            for number, (width, height) in enumerate(forms[i]):
                if not width:
                    break
                candidates = (box for box in _list_boxes(*points[i], width, height) if rooms[i].contains(box))
                free = (box for box in candidates if _is_free([box], strokes))
                box = next((box for box in free if _is_free([box, *list_leader(points[i], box)], occupied)), None)
                if box:
                    occupied += [box, *list_leader(points[i], box)]
                    placed[i] = number, box.left, (box.low + box.high) / 2
                    break
        return placed

    neighbours = [sum(math.dist(point, other) < CROWDED for other in points) for point in points]
    orders = [sorted(range(len(points)), key=lambda i: sign * neighbours[i]) for sign in (1, -1)]
    # the fewest labels that are in the last form, or nowhere
    return min(
        map(place_in_order, orders),
        key=lambda spots: sum(s is None or s[0] == len(f) - 1 for s, f in zip(spots, forms, strict=True)),
    )


def _is_free(boxes: Sequence[Box], occupied: Sequence[Box]) -> bool:
    return not any(box.overlaps(other) for box in boxes for other in occupied)


def find_leader(point: tuple[float, float], box: Box) -> tuple[tuple[float, float], ...]:
    """A stroke from near a point to the nearest place of its label's box; none if they are close."""
    x, y = min(max(point[0], box.left), box.right), min(max(point[1], box.low), box.high)
    length = math.dist(point, (x, y))
    if length < LEADER_LENGTH:
        return ()
    share = LEADER_START / length
    return (point[0] + (x - point[0]) * share, point[1] + (y - point[1]) * share), (x, y)


def list_leader(point: tuple[float, float], box: Box) -> list[Box]:
    """The places that the stroke from a point to its label covers, without its ends."""
    return sample_strokes(find_leader(point, box))


def sample_strokes(corners: Sequence[tuple[float, float]]) -> list[Box]:
    """Small boxes along the strokes between corners, without their ends."""
    boxes = []
    for first, last in itertools.pairwise(corners):
        steps = max(1, int(math.dist(first, last) / 3.0))
        for i in range(1, steps):
            x, y = (a + (b - a) * i / steps for a, b in zip(first, last, strict=True))
            boxes.append(Box(x - 1.5, y - 1.5, x + 1.5, y + 1.5))
    return boxes


def _list_boxes(x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """Positions of a label around a point, preferred first."""
    for gap in GAPS:
        for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
            left = x + gap if right > 0 else x - gap - width if right < 0 else x - width / 2
            low = y + gap if up > 0 else y - gap - height if up < 0 else y - height / 2
            if right and up:  # diagonal positions are closer
                left, low = left - right * gap / 2, low - up * gap / 2
            yield Box(left, low, left + width, low + height)
