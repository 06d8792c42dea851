"""What pictures show, as data: lines, pictures, and panels of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from ...results.section import Kind, Unit
from .style import Look


@dataclass(frozen=True)
class Line:
    """One variant's values, with intervals of y (low, high) and of x (left, right). note: what the label adds to the
    name, such as the fitted exponent."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    left: Sequence[float] | None = None
    right: Sequence[float] | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What can be drawn. kind: plots of one kind stand together. alt: for those who do not see it.

    place: what the numbers hold for; it stands in the picture, which may be shown without its page.
    """

    name: str
    kind: str
    title: str
    caption: str
    alt: str = ""
    config_text: str = ""

    def resolve(self) -> Picture:
        """The same with all that drawing decides."""
        return self

    def make_figure(self) -> Figure:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class PanelData(Picture):
    """What one plot shows. unit: how values are written.

    ticks: where the x axis has a mark and what it says. margin: air beside the first and the last of them, where x is
    not logarithmic. bounds: y limits, where its neighbours share them. drawn: bars stand beside each other, from zero.
    front: points that a thin line joins. No ylabel: y has no scale, and only tells lines apart.
    """

    xlabel: str
    ylabel: str
    unit: Unit
    lines: tuple[Line, ...]
    ticks: dict[float, str]
    log_x: bool = True
    margin: float = 0.35
    log_y: bool = True
    mark_type: Kind = "line"
    level: float | None = None
    level_x: float | None = None
    bands: tuple[tuple[float, float], ...] = ()  # of x, behind everything
    bounds: tuple[float, float] | None = None
    pareto_front: tuple[tuple[float, float], ...] = ()
