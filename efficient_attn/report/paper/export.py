"""Export a figure or table of runs as files for a paper."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...errors import UsageError
from ...results.file_marks import MARK
from .. import approximation_errors, select
from ..drawing import style
from ..drawing.print_figure import MAX_WIDTH, MIN_WIDTH, WIDE_FROM, grey_out, render_print_figure
from ..drawing.style import LineStyles
from ..gather import Frame, gather, join_notes
from ..sections.tradeoffs import CostName
from . import cost_figures, latex, quality_figures, selection
from .selection import Filters, PlotRows
from .table_columns import PaperFigure

FigureName = Literal["speed", "memory", "front", "perplexity", "crossover", "error", "ability"]
FileFormat = Literal["pdf", "svg", "png", "tex"]
COLUMN_INCHES = 3.3  # column width of most papers
MAX_POINTS = {False: 12, True: 24}  # between two axes, by whether the figure is as wide as a page
MAX_PERPLEXITIES = 14  # without --only: those above the scale share a height, so that the labels of more would overlap


@dataclass(frozen=True, kw_only=True)
class FigureRequest:
    """A figure to export. width: in inches. against: the cost axis of a Pareto front. show_config: whether the picture
    shows the configuration. only: specs or names of mechanisms, by default as many as fit. highlight: specs or names to
    emphasize. labels: ``SPEC=Ours``. filters: accepted values by column; several of one column are shown side by side;
    for ``machine`` a part of its name. Raises `UsageError` for invalid values."""

    figure: FigureName
    file_format: FileFormat = "pdf"
    width: float = COLUMN_INCHES
    against: CostName = "time"
    show_config: bool = True
    only: tuple[str, ...] = ()
    highlight: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    filters: Filters = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not MIN_WIDTH <= self.width <= MAX_WIDTH:
            allowed = f"{MIN_WIDTH:g} to {MAX_WIDTH:g} inches"
            raise UsageError(f"plot: --width {self.width:.3g}in: the width must be {allowed}")
        if self.against != "time" and self.figure not in ("front", "perplexity"):
            raise UsageError(f"plot: --against applies to --figure front and perplexity, not to --figure {self.figure}")


@dataclass(frozen=True)
class FigureFile:
    """The content of a file, or of several if a picture has several pages, with its caption of two sentences.

    notes: sentences that a caption has no room for; a table has them below it. labels, left_out: measured mechanisms
    that are shown, and that are not. missing: requested configurations without data. alternatives: the command-line
    options that select other configurations for the same figure."""

    pages: tuple[bytes, ...]
    caption: str
    config_text: str
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]
    missing: tuple[str, ...]
    alternatives: tuple[str, ...]


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure. rank: list the labels that it can show, by priority. make: draw these labels. list_rows: its
    configurations. count_points: number of mechanisms that decides between configurations, if not those of rank.
    max_lines: None if it may have several pages, as tables may. shared: columns of which it shows all values."""

    rank: Callable[[PlotRows], list[str]]
    make: Callable[[PlotRows, Sequence[str], LineStyles], PaperFigure]
    max_lines: int | None = None
    list_rows: Callable[[Frame, Filters], list[PlotRows]] = selection.list_timed_rows
    count_points: Callable[[PlotRows], int] | None = None
    shared: tuple[str, ...] = ()

    def count(self, plot_rows: PlotRows) -> int:
        """Number of mechanisms that it can show."""
        return self.count_points(plot_rows) if self.count_points else len(self.rank(plot_rows))


def _choose_kind(request: FigureRequest) -> FigureKind:
    against, max_points = request.against, MAX_POINTS[request.width >= WIDE_FROM]
    return {
        **FIGURE_KINDS,
        "front": FigureKind(
            cost_figures.rank_by_speedup,
            partial(quality_figures.make_front_figure, against),
            max_points,
            quality_figures.list_front_rows,
            partial(quality_figures.count_inexact_points, against),
        ),
        "perplexity": FigureKind(
            quality_figures.rank_by_perplexity,
            partial(quality_figures.make_perplexity_figure, against),
            max_points if request.only else min(max_points, MAX_PERPLEXITIES),
            quality_figures.list_swapped_rows,
        ),
    }[request.figure]


FIGURE_KINDS: Mapping[str, FigureKind] = {
    "speed": FigureKind(cost_figures.rank_by_speedup, cost_figures.make_speed_figure, cost_figures.MAX_LINES),
    "memory": FigureKind(cost_figures.rank_by_memory, cost_figures.make_memory_figure, cost_figures.MAX_LINES),
    "crossover": FigureKind(cost_figures.rank_crossovers, cost_figures.make_crossover_figure),
    "error": FigureKind(
        quality_figures.rank_by_error, quality_figures.make_error_figure, list_rows=selection.list_compared_rows
    ),
    "ability": FigureKind(
        quality_figures.rank_by_score,
        quality_figures.make_ability_figure,
        list_rows=quality_figures.list_tested_rows,
        shared=("task", "part", "seq_len"),
    ),
}


def make_figure(runs: Sequence[Path], request: FigureRequest) -> FigureFile:
    """Make the figure of these runs as a file.

    Of several configurations, the one with most mechanisms is drawn, or one for each combination of the filters'
    values; `FigureFile.alternatives` lists the others. Raises `UsageError` for runs without data for the figure, and
    for unknown names.
    """
    gathered, kind = gather(runs), _choose_kind(request)
    rows = approximation_errors.add_errors(select.add_labels(gathered.rows))
    filters = {name: tuple(dict.fromkeys(accepted)) for name, accepted in request.filters.items()}
    candidates = kind.list_rows(rows, filters)
    chosen, others, missing = selection.choose_plot_rows(candidates, kind.count, request.figure, filters, kind.shared)
    line_styles = style.choose_line_styles(rows["label"], dict(zip(rows["label"], rows["family"], strict=True)))
    figures, labels, left_out, bold = _make_figures(kind, chosen, request, line_styles)
    common, titles = selection.describe_configurations(chosen)
    first, *captions = dict.fromkeys(figure.caption for figure in figures)
    caption = "; ".join([first, *(text[0].lower() + text[1:] for text in captions)])
    notes = [note for x in figures for note in (*(() if request.file_format == "tex" else x.symbols), *x.notes)]
    if run_note := join_notes(gathered.run_notes, [run for plot_rows in chosen for run in plot_rows.rows["run_id"]]):
        notes.append(f"Runs: {run_note}.")
    if left_out and request.file_format != "tex":
        notes.append(f"Not shown: {', '.join(left_out)}.")
    file = FigureFile(
        (),
        f"{caption}. Measured: {common}.",
        "; ".join(plot_rows.format_config() for plot_rows in chosen),
        tuple(labels),
        tuple(dict.fromkeys(notes)),
        tuple(left_out),
        tuple(missing),
        tuple(dict.fromkeys(_format_options(chosen[0], other) for other in others)),
    )
    if request.file_format == "tex":
        return _add_table(file, list(zip(titles, figures, strict=True)), request, bold)
    pages = render_print_figure(
        [replace(figure.panel, config_text=common) for figure in figures],
        request.file_format,
        width=request.width,
        bold=bold,
        titles=[", ".join(title) for title in titles],
        with_config=request.show_config,
    )
    return replace(file, pages=tuple(pages))


def _make_figures(
    kind: FigureKind, chosen: Sequence[PlotRows], request: FigureRequest, line_styles: LineStyles
) -> tuple[list[PaperFigure], list[str], list[str], set[str]]:
    """The figure of each configuration, the labels that are shown and that are not, and the names of highlighted
    mechanisms. If there are some, all others become grey."""
    ranks = [kind.rank(plot_rows) for plot_rows in chosen]
    # the best of each configuration first, so that none is without room for its own
    alternating = dict.fromkeys(label for tied in itertools.zip_longest(*ranks) for label in tied if label is not None)
    baseline_labels = sorted({label for plot_rows in chosen for label in plot_rows.baseline_labels})
    labels, left_out = selection.choose_labels(
        list(alternating),
        None if request.file_format == "tex" else kind.max_lines,
        only=request.only,
        highlight=request.highlight,
        baseline_labels=baseline_labels,
    )
    labels.sort(key=list(itertools.chain(*ranks)).index)
    names = selection.read_labels(request.labels, list(dict.fromkeys([*labels, *baseline_labels])))
    bold = {names[label] for text in request.highlight for label in selection.find_labels(text, names)}
    named_styles = {names.get(label, label): line_style for label, line_style in line_styles.items()}
    if bold:
        named_styles |= grey_out({name: named_styles[name] for name in names.values()}, bold)
    figures = []
    for plot_rows in chosen:
        measured = set(plot_rows.rows["label"])
        measured_names = [names[label] for label in labels if label in measured]
        figures.append(kind.make(plot_rows.rename(names), measured_names, named_styles))
    drawn = {label for figure in figures for column in figure.columns for label in column.cells}
    bold &= drawn.union(line.label for figure in figures for line in figure.panel.lines)
    if request.highlight and not bold:
        raise UsageError(f"plot: --highlight {request.highlight[0]}: it is drawn as the reference level, not as a line")
    return figures, labels, left_out, bold


def _add_table(
    file: FigureFile,
    figures: Sequence[tuple[Sequence[str], PaperFigure]],
    request: FigureRequest,
    bold: Collection[str],
) -> FigureFile:
    """Add the table. Errors are a column of each configuration, or of all, if they agree."""
    error_columns = [figure.error for _, figure in figures if figure.error]
    errors = {label: cell for column in error_columns for label, cell in column.cells.items()}
    agree = all(errors[label] == cell for column in error_columns for label, cell in column.cells.items())
    table = latex.LatexTable(
        [(title, [*x.columns, *([x.error] if x.error and not agree else [])]) for title, x in figures],
        [error_columns[0]._replace(cells=errors)] if error_columns and agree else [],
        file.caption,
        file.notes,
        f"tab:{request.figure}",
        (f"{MARK}. Needs \\usepackage{{booktabs}} and \\usepackage{{textcomp}}.", file.config_text),
        bold,
    )
    tables = latex.fit_table(table, request.width)
    notes = (*file.notes, *tables[0].describe_left_out())
    return replace(file, pages=tuple(latex.format_table(page).encode() for page in tables), notes=notes)


def _format_options(chosen: PlotRows, other: PlotRows) -> str:
    """The options that select another configuration: those in which it differs from the chosen one."""
    options = []
    for column in selection.FILTERS:
        value: Any = other.config.get(column)
        if column in other.config and str(value) != str(chosen.config.get(column)):
            text = f"--{column.replace('_', '-')} {value}"
            options.append({"causal": "--causal" if value else "--no-causal"}.get(column, text))
    return " ".join(options) or other.format_config()
