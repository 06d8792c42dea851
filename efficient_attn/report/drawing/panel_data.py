"""Data of pictures: lines, and panels of lines, points or bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...results.section import PlotKind, Unit
from ...results.stats import Estimate
from .. import formatting
from .axes import compute_linear_limits, compute_log_limits, make_y_ticks
from .style import FAINT, NULL_STYLE, LineStyle

ENDS = ("x", "y", "low", "high", "left", "right")  # fields of a line with a value for each point
BARS_WIDTH = 0.8  # of a group of bars
MOST_LINES, MOST_ROWS, MOST_POINTS = 12, 14, 20  # lines of a panel; rows of a dot plot; labels of a scatter plot
SINGLE_LENGTH_RANK = 3  # added to the rank of plots of a single length, which tables show as well
GREY = LineStyle(FAINT, "o", "-", hollow=True)  # of points that are labeled in another part of a scatter plot


@dataclass(frozen=True)
class Line:
    """Values of one variant, with intervals of y (low, high) and of x (left, right). note: text after the name in the
    label, such as the fitted exponent. reference: x of a hollow square beside a point, such as a claimed value."""

    label: str
    line_style: LineStyle
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    left: Sequence[float] | None = None
    right: Sequence[float] | None = None
    note: str = ""
    reference: float | None = None

    def list_x(self) -> list[float]:
        """All values along x, with the ends of intervals."""
        return [*self.x, *(self.left or ()), *(self.right or ()), *([] if self.reference is None else [self.reference])]


def make_line(label: str, line_style: LineStyle, x: Sequence[float], y: Sequence[Estimate], note: str = "") -> Line:
    """A line through estimates, with their intervals if all have one."""
    columns: Any = zip(*y, strict=True)
    values, low, high = map(list, columns)
    line = Line(label, line_style, x, values, note=note)
    return line if None in (*low, *high) else replace(line, low=low, high=high)


def make_point(label: str, line_style: LineStyle, x: Estimate, y: Estimate, note: str = "") -> Line:
    """A line of a single point, with the intervals of both values if they have any."""
    line = make_line(label, line_style, [x.value], [y], note)
    return line if x.low is None or x.high is None else replace(line, left=[x.low], right=[x.high])


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A plot or heatmap. kind: plots of the same kind are grouped. config_text: the measured configuration. It is drawn
    as well, because a picture may be shown without its page. rank: drawn first if low. mode: if all rows share one."""

    title: str
    caption: str = ""
    name: str = ""
    kind: str = ""
    config_text: str = ""
    rank: int = 0
    mode: str | None = None

    @property
    def labels(self) -> list[str]:
        """The labels of lines or grids."""
        raise NotImplementedError

    @property
    def alt(self) -> str:
        """The text alternative."""
        return f"{self.title}, for {formatting.join_words(self.labels)}."

    def split(self) -> list[tuple[str, Picture]]:
        """The picture as several that are not too tall, each with its number; empty for a single one."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Panel(Picture):
    """A plot of lines, points or bars. unit: of the values of y.

    ticks: positions and labels of the x axis. margin: padding beside the outer ticks of a linear x axis. bounds: y
    limits, if shared with other panels. mark_type: bars are grouped and start at zero. pareto_front: points joined by
    a thin line. Without a ylabel, y has no scale and only separates the lines. bands: x ranges, shaded in the
    background; band_texts: at most two, above the bands.

    exact_below: smaller values (of x, if y has no scale) stand in a lane of their own beyond a break of the axis.
    front_end: x at which the front continues to the lane.
    """

    xlabel: str
    ylabel: str
    unit: Unit
    lines: tuple[Line, ...]
    ticks: dict[float, str]
    log_x: bool = True
    margin: float = 0.35
    log_y: bool = True
    mark_type: PlotKind = "line"
    level: float | None = None
    level_x: float | None = None
    level_text: str = ""
    bands: tuple[tuple[float, float], ...] = ()
    band_texts: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    pareto_front: tuple[tuple[float, float], ...] = ()
    exact_below: float | None = None
    front_end: float | None = None

    @property
    def labels(self) -> list[str]:
        """The labels of lines."""
        return [line.label for line in self.lines if line.label]

    @property
    def is_dot_plot(self) -> bool:
        """Whether each line has a row of its own."""
        return not self.ylabel

    @property
    def is_scatter_plot(self) -> bool:
        """Whether each line is a single point between two axes."""
        return self.mark_type == "points" and not self.is_dot_plot and all(len(line.x) == 1 for line in self.lines)

    def is_exact(self, x: float, y: float) -> bool:
        """Whether a point stands in the lane of exact values."""
        return self.exact_below is not None and (x if self.is_dot_plot else y) < self.exact_below

    @property
    def has_lane(self) -> bool:
        """Whether a value stands in the lane."""
        return any(self.is_exact(x, y) for line in self.lines for x, y in zip(line.x, line.y, strict=True))

    def split_lane(self, *, exact: bool) -> tuple[Line, ...]:
        """The lines with the values in the lane, at 0 across it, or with the others only."""
        split: list[Line] = []
        for line in self.lines:
            indices = [i for i, at in enumerate(zip(line.x, line.y, strict=True)) if self.is_exact(*at) == exact]
            ends_by_name = ((name, getattr(line, name)) for name in ENDS)
            fields: dict[str, Any] = {name: [v[i] for i in indices] for name, v in ends_by_name if v is not None}
            if exact:
                across, *ends = ("x", "left", "right") if self.is_dot_plot else ("y", "low", "high")
                fields |= {across: [0.0] * len(indices), **dict.fromkeys(ends)}
            split.append(replace(line, **fields))
        return tuple(split)

    def resolve(self) -> Panel:
        """The panel with bars side by side, and with the bounds of its axes."""
        panel = replace(self, lines=_offset_bars(self.lines) if self.mark_type == "bars" else self.lines)
        return replace(panel, bounds=panel.bounds or _compute_bounds(panel))

    def split(self) -> list[tuple[str, Picture]]:
        """Several panels of fewer lines, in dot plots the lowest rows first; each has all lines of trivial predictors.
        Scatter plots all have all points, of which those of the others are grey and have no labels."""
        most = MOST_ROWS if self.is_dot_plot else MOST_POINTS if self.is_scatter_plot else MOST_LINES
        common = [line for line in self.lines if line.line_style == NULL_STYLE]
        lines = [line for line in self.lines if line not in common]
        if self.is_scatter_plot and len(lines) > most:
            lines.sort(key=lambda line: line.label)
        parts = formatting.split_evenly(lines, most - len(common))
        return [(text, self._take([*part, *common])) for text, part in parts]

    def _take(self, lines: Sequence[Line]) -> Panel:
        if self.is_dot_plot:
            rows = tuple(replace(line, y=[float(y)]) for y, line in enumerate(lines))
            return replace(self, lines=rows, bounds=_compute_row_bounds(len(rows)))
        others = [line for line in self.lines if line not in lines] if self.is_scatter_plot else []
        return replace(self, lines=(*(replace(x, label="", note="", line_style=GREY) for x in others), *lines))


def _compute_row_bounds(count: int) -> tuple[float, float]:
    return -0.6, count - 0.4


def make_dot_plot(
    lines: Sequence[Line], unit: Unit, *, log_x: bool = True, ticks: dict[float, str] | None = None, **fields: Any
) -> Panel:
    """A dot plot: values and intervals along x, one row per line, from bottom to top.

    ticks: of x, by default such that all values and bands are between the outer ones. fields: others of the panel.
    """
    if ticks is None:
        least = fields.get("exact_below") or -math.inf
        values = [x for line in lines for x in line.list_x() if math.isfinite(x) and x >= least]
        values += [end for band in fields.get("bands", ()) for end in band]
        limits = compute_log_limits(values) if log_x else compute_linear_limits(values)
        ticks = {limits[0]: "", limits[1]: "", **make_y_ticks(unit, *limits, log=log_x)}
    fields |= {"ylabel": "", "log_y": False, "bounds": _compute_row_bounds(len(lines)), "mark_type": "points"}
    return Panel(lines=tuple(lines), unit=unit, log_x=log_x, ticks=ticks, margin=0.0, **fields)


def _compute_bounds(panel: Panel) -> tuple[float, float]:
    """y limits that contain all values, with padding."""
    values = [v for line in panel.split_lane(exact=False) for ends in (line.y, line.low, line.high) for v in ends or ()]
    if panel.log_y:
        return compute_log_limits(values, panel.level)
    if panel.mark_type != "bars":
        return compute_linear_limits(values)
    low, high = compute_linear_limits([*values, 0.0])
    return 0.0 if min(values) >= 0 < max(values) else low, high


def _offset_bars(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Shift the x of each line so that bars are grouped around their common tick."""
    width, centre = BARS_WIDTH / len(lines), (len(lines) - 1) / 2
    return tuple(replace(line, x=[x + (i - centre) * width for x in line.x]) for i, line in enumerate(lines))
