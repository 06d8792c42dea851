"""What values are compared with: a level across a plot, or a band where the level itself has a range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .figures import Panel


def draw_levels(axes: Axes, panel: Panel) -> None:
    """The panel's levels of y and x as lines, and its bands of x behind everything."""
    if panel.level is not None:
        axes.axhline(panel.level, color=INK, linewidth=0.9, zorder=1.5)
    if panel.level_x is not None:
        axes.axvline(panel.level_x, color=INK, linewidth=0.9, zorder=1.5)
    for low, high in panel.bands:
        axes.axvspan(low, high, facecolor=FAINT, edgecolor=FAINT, alpha=0.25, linewidth=1.2, zorder=1.2)
