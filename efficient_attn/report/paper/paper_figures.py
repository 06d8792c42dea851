"""The kinds of figures for papers, each with its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..drawing.style import LineStyles
from ..gather import Frame
from ..sections.tradeoffs import CostName
from . import ability_figure, crossover_figure, error_figures, length_figures, selection
from .length_figures import MAX_LINES
from .selection import Filters, PlotRows
from .table_columns import PaperFigure

MAX_POINTS = {False: 12, True: 24}  # of a front, by whether it is as wide as a page


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure. rank: list the labels that it can show, by priority. make: draw these labels. list_rows: its
    configurations. count_points: number of mechanisms that decides between configurations, if not those of rank.
    max_lines: None if it may have several pages. shared: columns of which it shows all values."""

    rank: Callable[[PlotRows], list[str]]
    make: Callable[[PlotRows, Sequence[str], LineStyles], PaperFigure]
    max_lines: int | None = MAX_LINES
    list_rows: Callable[[Frame, Filters], list[PlotRows]] = selection.list_timed_rows
    count_points: Callable[[PlotRows], int] | None = None
    shared: tuple[str, ...] = ()

    def count(self, plot_rows: PlotRows) -> int:
        """Number of mechanisms that it can show."""
        return self.count_points(plot_rows) if self.count_points else len(self.rank(plot_rows))


def choose_figure(name: str, *, against: CostName, wide: bool) -> FigureKind:
    """The kind of figure by its name. against: the cost axis of a Pareto front. wide: whether it spans two columns."""
    if name == "front":
        return FigureKind(
            length_figures.rank_by_speedup,
            partial(error_figures.make_front_figure, against),
            MAX_POINTS[wide],
            error_figures.list_front_rows,
            partial(error_figures.count_inexact_points, against),
        )
    return FIGURES[name]


FIGURES: Mapping[str, FigureKind] = {
    "speed": FigureKind(length_figures.rank_by_speedup, length_figures.make_speed_figure),
    "memory": FigureKind(length_figures.rank_by_memory, length_figures.make_memory_figure),
    "crossover": FigureKind(crossover_figure.rank_by_speedup, crossover_figure.make_crossover_figure, None),
    "error": FigureKind(
        error_figures.rank_by_error,
        error_figures.make_error_figure,
        None,
        selection.list_compared_rows,
    ),
    "ability": FigureKind(
        ability_figure.rank_by_score,
        ability_figure.make_ability_figure,
        None,
        ability_figure.list_tested_rows,
        shared=("task", "part", "seq_len"),
    ),
}
