"""Export a figure or table of runs as a file for a paper."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ...errors import UsageError
from ...results.file_marks import MARK
from .. import approximation_errors, select
from ..drawing import style
from ..drawing.figures import Panel
from ..drawing.print_figure import MAX_WIDTH, MIN_WIDTH, render_print_figure
from ..gather import gather, join_notes
from ..sections.tradeoffs import CostName
from . import latex, selection
from .paper_figures import PaperFigure, choose_figure
from .selection import PlotRows

FigureName = Literal["speed", "memory", "front", "crossover", "loss"]
FileFormat = Literal["pdf", "svg", "png", "tex"]
COLUMN_INCHES = 3.3  # column width of most papers


@dataclass(frozen=True, kw_only=True)
class FigureRequest:
    """A figure to export. width: of pictures, in inches. against: the cost axis of a Pareto front. show_config: whether
    the picture shows the configuration. only: specs or names of mechanisms, by default as many as fit. highlight: specs
    or names to emphasize. labels: ``SPEC=Ours``. filters: required values by column; for ``machine`` a part of its
    name. Raises `UsageError` for invalid values."""

    figure: FigureName
    file_format: FileFormat = "pdf"
    width: float = COLUMN_INCHES
    against: CostName = "time"
    show_config: bool = True
    only: tuple[str, ...] = ()
    highlight: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    filters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not MIN_WIDTH <= self.width <= MAX_WIDTH:
            allowed = f"{MIN_WIDTH:g} to {MAX_WIDTH:g} inches"
            raise UsageError(f"plot: --width {self.width:.3g}in: the width must be {allowed}")
        if self.against != "time" and self.figure != "front":
            raise UsageError(f"plot: --against applies to --figure front only, not to --figure {self.figure}")


@dataclass(frozen=True)
class FigureFile:
    """A file's content with its caption. labels, left_out: measured mechanisms that are shown, and that are not.
    alternatives: the command-line options that select other configurations for the same figure."""

    data: bytes
    caption: str
    config_text: str
    labels: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()


def make_figure(runs: Sequence[Path], request: FigureRequest) -> FigureFile:
    """Make the figure of these runs as a file.

    Of several configurations, the one with most mechanisms is drawn; `FigureFile.alternatives` lists the others. Raises
    `UsageError` for runs without data for the figure, and for unknown names.
    """
    gathered = gather(runs)
    rows = approximation_errors.add_errors(select.add_labels(gathered.rows))
    line_styles = style.choose_line_styles(rows["label"])
    figure = choose_figure(request.figure, request.against)
    filtered = selection.filter_rows(rows, request.filters)
    list_rows = selection.list_compared_rows if figure.compares_outputs else selection.list_timed_rows
    plot_rows, alternatives = selection.choose_plot_rows(list_rows(filtered), figure.count, request.figure)
    baseline_labels = plot_rows.baseline_labels
    ranked, only, highlight = figure.rank(plot_rows), request.only, request.highlight
    labels, left_out = selection.choose_labels(
        ranked, figure.max_lines, only=only, highlight=highlight, baseline_labels=baseline_labels
    )
    paper_figure = figure.make(plot_rows, labels, line_styles)
    lines = paper_figure.panel.lines
    shown_labels = list(dict.fromkeys([cells[0].text for cells in paper_figure.body] + [line.label for line in lines]))
    valid_labels = [*shown_labels, *baseline_labels]
    highlighted = {label for text in request.highlight for label in selection.find_labels(text, valid_labels)}
    bold = frozenset(highlighted.intersection(shown_labels))
    if request.highlight and not bold:
        raise UsageError(f"plot: --highlight {request.highlight[0]}: it is drawn as the reference level, not as a line")
    names = selection.read_labels(request.labels, shown_labels)
    note = join_notes(gathered.run_notes, plot_rows.rows["run_id"])
    config_text = ", ".join(filter(None, (note, plot_rows.format_config())))
    caption = _replace_labels(f"{paper_figure.caption} Measured: {config_text}.", names)
    named = replace(paper_figure, panel=_apply_names(paper_figure.panel, names, bold, config_text), caption=caption)
    data = _render(named, request, names, bold)
    options = tuple(dict.fromkeys(_format_options(plot_rows, alternative) for alternative in alternatives))
    return FigureFile(data, caption, config_text, tuple(labels), tuple(left_out), options)


def _render(figure: PaperFigure, request: FigureRequest, names: Mapping[str, str], bold: frozenset[str]) -> bytes:
    if request.file_format == "tex":
        packages = r"Needs \usepackage{booktabs} and \usepackage{textcomp}."
        return latex.format_table(
            figure, names, f"tab:{request.figure}", bold, head=(f"{MARK}. {packages}", figure.panel.config_text)
        ).encode()
    bold_names, show_config = {names[label] for label in bold}, request.show_config
    return render_print_figure(
        figure.panel, request.file_format, width=request.width, bold=bold_names, with_config=show_config
    )


def _apply_names(panel: Panel, names: Mapping[str, str], bold: frozenset[str], config_text: str) -> Panel:
    """Apply names to a panel; if some are highlighted, all others become grey."""
    lines = []
    for line in panel.lines:
        grey = bool(bold) and line.label not in bold
        line_style = line.line_style._replace(colour=style.FAINT) if grey else line.line_style
        lines.append(replace(line, label=names[line.label], line_style=line_style))
    return replace(panel, lines=tuple(lines), config_text=config_text)


def _replace_labels(text: str, names: Mapping[str, str]) -> str:
    """Replace whole labels in a text by names; longer labels take precedence."""
    changed = sorted((label for label, name in names.items() if label != name), key=len, reverse=True)
    if not changed:
        return text
    pattern = rf"(?<![\w:=|])(?:{'|'.join(map(re.escape, changed))})(?![\w:=|])"
    return re.sub(pattern, lambda match: names[match[0]], text)


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
