"""Data of plots: lines, pictures, and panels of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from ...results.section import PlotKind, Unit
from ...results.stats import Estimate
from .style import LineStyle

ENDS = ("x", "y", "low", "high", "left", "right")  # fields of a line with a value for each point


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


def make_point(label: str, line_style: LineStyle, x: Estimate, y: Estimate, note: str = "") -> Line:
    """A line of a single point, with the intervals of both values if they have any."""
    (left, right), (low, high) = _list_ends(x), _list_ends(y)
    return Line(label, line_style, [x.value], [y.value], low, high, left, right, note)


def _list_ends(estimate: Estimate) -> tuple[list[float] | None, list[float] | None]:
    if estimate.low is None or estimate.high is None:
        return None, None
    return [estimate.low], [estimate.high]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A plot or heatmap. alt: text alternative.

    The plan of the picture sets the rest. kind: plots of the same kind are grouped. config_text: the measured
    configuration. It is drawn as well, because a picture may be shown without its page.
    """

    title: str
    caption: str
    alt: str = ""
    name: str = ""
    kind: str = ""
    config_text: str = ""

    def make_figure(self) -> Figure:
        """The picture as a matplotlib figure."""
        raise NotImplementedError

    def split(self) -> list[tuple[str, Picture]]:
        """The picture as several that are not too tall, each with its number; empty for a single one."""
        return [("", self)]

    def count_lines(self) -> int:
        """Number of lines or grids."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PanelData(Picture):
    """Data of a plot of lines, points or bars. unit: of the values of y.

    ticks: positions and labels of the x axis. margin: padding beside the outer ticks of a linear x axis. bounds: y
    limits, if shared with other panels. mark_type: bars are grouped and start at zero. pareto_front: points joined by
    a thin line. Without a ylabel, y has no scale and only separates the lines.

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
    bands: tuple[tuple[float, float], ...] = ()  # x ranges, shaded in the background
    band_texts: tuple[str, ...] = ()  # at most two, above the bands
    bounds: tuple[float, float] | None = None
    pareto_front: tuple[tuple[float, float], ...] = ()
    exact_below: float | None = None
    front_end: float | None = None

    def count_lines(self) -> int:
        """Number of lines."""
        return len(self.lines)

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
