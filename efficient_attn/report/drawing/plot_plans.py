"""Plans of plots. The data of a plot are collected when it is drawn, because few of many plots are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .figures import Panel, Plot, render_plot
from .panel_data import Picture
from .style import LineStyles

MOST_LINES = 14  # of a panel
MAX_TITLE_LETTERS = 60  # of a picture


@dataclass(frozen=True)
class PlotPlan:
    """A plot that can be drawn. collect: makes the picture, without what the plan has: name, kind and configuration.

    draw_order: of its kind. single_length: whether it is a dot plot. mode: if all rows share one.
    """

    name: str
    kind: str
    title: str
    line_count: int
    collect: Callable[[], Picture]
    draw_order: int = 0
    single_length: bool = False
    mode: str | None = None
    config_text: str = ""

    @property
    def rank(self) -> int:
        """Drawn first if low: the order of its kind; plots of one length last, as tables show it too."""
        return self.draw_order + 3 * self.single_length

    def make_picture(self) -> Picture:
        """The picture to draw."""
        return replace(self.collect(), name=self.name, kind=self.kind, config_text=self.config_text)

    def render(self, *, raster: bool = True) -> Plot:
        """The plot as SVG and, unless ``raster`` is false, as PNG."""
        return replace(render_plot(self.make_picture(), raster=raster), mode=self.mode)


@dataclass(frozen=True)
class PlotContext:
    """What all plots of a setting share: line styles by label, the suffix of file names, and the configuration."""

    line_styles: LineStyles
    suffix: str = ""
    config_text: str = ""

    def plan(
        self, name: str, kind: str, title: str, line_count: int, collect: Callable[[], Picture], **options: Any
    ) -> PlotPlan:
        """The plan of a plot of this setting. options: other fields of `PlotPlan`."""
        return PlotPlan(name, kind, title, line_count, collect, config_text=self.config_text, **options)

    def plan_panel(self, name: str, kind: str, panel: Panel, **options: Any) -> PlotPlan:
        """The plan of a panel whose data are collected already."""
        return self.plan(name, kind, panel.title, len(panel.lines), lambda: panel, **options)
