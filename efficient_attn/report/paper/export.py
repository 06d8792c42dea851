"""Export a figure or table of runs as files for a paper."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...errors import UsageError
from ...results.file_marks import MARK
from .. import approximation_errors, select
from ..drawing import style
from ..drawing.print_figure import MAX_WIDTH, MIN_WIDTH, WIDE_FROM, grey_out, render_print_figure
from ..drawing.style import LineStyles
from ..gather import gather, join_notes
from ..sections.tradeoffs import CostName
from . import latex, selection
from .paper_figures import FigureKind, choose_figure
from .selection import PlotRows
from .table_columns import PaperFigure, TableColumn

FigureName = Literal["speed", "memory", "front", "crossover", "error", "ability"]
FileFormat = Literal["pdf", "svg", "png", "tex"]
COLUMN_INCHES = 3.3  # column width of most papers


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
    filters: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not MIN_WIDTH <= self.width <= MAX_WIDTH:
            allowed = f"{MIN_WIDTH:g} to {MAX_WIDTH:g} inches"
            raise UsageError(f"plot: --width {self.width:.3g}in: the width must be {allowed}")
        if self.against != "time" and self.figure != "front":
            raise UsageError(f"plot: --against applies to --figure front only, not to --figure {self.figure}")


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
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()


def make_figure(runs: Sequence[Path], request: FigureRequest) -> FigureFile:
    """Make the figure of these runs as a file.

    Of several configurations, the one with most mechanisms is drawn, or one for each combination of the filters'
    values; `FigureFile.alternatives` lists the others. Raises `UsageError` for runs without data for the figure, and
    for unknown names.
    """
    gathered = gather(runs)
    rows = approximation_errors.add_errors(select.add_labels(gathered.rows))
    kind = choose_figure(request.figure, against=request.against, wide=request.width >= WIDE_FROM)
    filters = {name: tuple(dict.fromkeys(accepted)) for name, accepted in request.filters.items()}
    candidates = kind.list_rows(rows, filters)
    choice = selection.choose_plot_rows(candidates, kind.count, request.figure, filters, kind.shared)
    mechanisms = _choose_mechanisms(kind, choice.chosen, request)
    families = dict(zip(rows["label"], rows["family"], strict=True))
    figures = _make_figures(kind, choice.chosen, mechanisms, style.choose_line_styles(rows["label"], families))
    names = {label for figure in figures for label in figure.list_labels()}
    bold = names.intersection(mechanisms.bold)
    if request.highlight and not bold:
        raise UsageError(f"plot: --highlight {request.highlight[0]}: it is drawn as the reference level, not as a line")
    common, titles = selection.describe_configurations(choice.chosen)
    first, *others = dict.fromkeys(figure.caption for figure in figures)
    caption = "; ".join([first, *(other[0].lower() + other[1:] for other in others)])
    run_ids = [run for plot_rows in choice.chosen for run in plot_rows.rows["run_id"]]
    notes = [note for figure in figures for note in figure.list_notes(with_symbols=request.file_format != "tex")]
    if mechanisms.left_out:
        notes.append(f"Not shown: {', '.join(mechanisms.left_out)}.")
    if run_note := join_notes(gathered.run_notes, run_ids):
        notes.append(f"Runs: {run_note}.")
    made = FigureFile(
        (),
        f"{caption}. Measured: {common}.",
        "; ".join(plot_rows.format_config() for plot_rows in choice.chosen),
        tuple(mechanisms.labels),
        tuple(dict.fromkeys(notes)),
        tuple(mechanisms.left_out),
        tuple(choice.missing),
        tuple(dict.fromkeys(_format_options(choice.chosen[0], other) for other in choice.others)),
    )
    if request.file_format == "tex":
        return _add_table(made, list(zip(titles, figures, strict=True)), request, bold)
    panels = [replace(figure.panel, config_text=common) for figure in figures]
    pages = render_print_figure(
        panels,
        request.file_format,
        width=request.width,
        bold=bold,
        titles=[", ".join(title) for title in titles],
        with_config=request.show_config,
    )
    return replace(made, pages=tuple(pages))


class _Mechanisms(NamedTuple):
    """Labels that are shown and that are not, the names of all shown ones, and the names of highlighted ones."""

    labels: list[str]
    left_out: list[str]
    names: dict[str, str]
    bold: set[str]


def _choose_mechanisms(kind: FigureKind, chosen: Sequence[PlotRows], request: FigureRequest) -> _Mechanisms:
    """The mechanisms of all configurations, and their names."""
    baseline_labels = sorted({label for plot_rows in chosen for label in plot_rows.baseline_labels})
    labels, left_out = selection.choose_labels(
        list(dict.fromkeys(label for plot_rows in chosen for label in kind.rank(plot_rows))),
        kind.max_lines,
        only=request.only,
        highlight=request.highlight,
        baseline_labels=baseline_labels,
    )
    names = selection.read_labels(request.labels, list(dict.fromkeys([*labels, *baseline_labels])))
    bold = {names[label] for text in request.highlight for label in selection.find_labels(text, names)}
    return _Mechanisms(labels, left_out, names, bold)


def _make_figures(
    kind: FigureKind, chosen: Sequence[PlotRows], mechanisms: _Mechanisms, line_styles: LineStyles
) -> list[PaperFigure]:
    """The figure of each configuration. If some mechanisms are highlighted, all others become grey."""
    names, figures = mechanisms.names, []
    named_styles = {names.get(label, label): line_style for label, line_style in line_styles.items()}
    if mechanisms.bold:
        named_styles |= grey_out({name: named_styles[name] for name in names.values()}, mechanisms.bold)
    for plot_rows in chosen:
        measured = set(plot_rows.rows["label"])
        measured_names = [names[label] for label in mechanisms.labels if label in measured]
        figures.append(kind.make(plot_rows.rename(names), measured_names, named_styles))
    return figures


def _add_table(
    made: FigureFile,
    figures: Sequence[tuple[Sequence[str], PaperFigure]],
    request: FigureRequest,
    bold: Collection[str],
) -> FigureFile:
    """Add the table. Errors are a column of each configuration, or of all, if they agree."""
    error_columns = [figure.error for _, figure in figures if figure.error]
    errors = dict(item for column in error_columns for item in column.cells.items())
    agree = all(errors[label] == cell for column in error_columns for label, cell in column.cells.items())
    groups = [
        (title, (*figure.columns, *([figure.error] if figure.error and not agree else []))) for title, figure in figures
    ]
    table = latex.LatexTable(
        groups,
        [TableColumn(error_columns[0].head, errors)] if error_columns and agree else [],
        made.caption,
        made.notes,
        f"tab:{request.figure}",
        (f"{MARK}. Needs \\usepackage{{booktabs}} and \\usepackage{{textcomp}}.", made.config_text),
        bold,
    )
    tables = latex.fit_table(table, request.width)
    notes = (*made.notes, *tables[0].describe_left_out())
    return replace(made, pages=tuple(latex.format_table(page).encode() for page in tables), notes=notes)


def _format_options(chosen: PlotRows, other: PlotRows) -> str:
    """The options that select another configuration: those in which it differs from the chosen one."""
    options = []
    for column in selection.FILTERS:
        value: Any = other.config.get(column)
        if column in other.config and str(value) != str(chosen.config.get(column)):
            if column == "causal":
                options.append("--causal" if value else "--no-causal")
            else:
                options.append(f"--{column.replace('_', '-')} {value}")
    return " ".join(options) or other.format_config()
