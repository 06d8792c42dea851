"""The columns of a paper's table, and a figure with its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import formatting
from ..answers.decision_table import Decision
from ..approximation_errors import EXACT_TEXT, ROUNDING_ERROR, is_exact
from ..drawing.panel_data import Panel
from .selection import PlotRows


class TableCell(NamedTuple):
    """The text of a cell and its interval."""

    text: str
    interval: str = ""


class TableColumn(NamedTuple):
    """A column with its cells by label. length: of a column that a narrow table may leave out."""

    head: str
    cells: Mapping[str, TableCell]
    length: int | None = None


@dataclass(frozen=True)
class PaperFigure:
    """The figure of one configuration, and the columns of its table. caption: a sentence without its period. notes:
    sentences for both; symbols: for the picture only. error: the column of errors, if another value is shown."""

    panel: Panel
    columns: Sequence[TableColumn]
    caption: str
    notes: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    error: TableColumn | None = None


def make_estimate_cell(
    estimate: Estimate | None, format_value: Callable[[float], str] = units.number, scale: float = 1
) -> TableCell:
    """A value with its interval, if it has one. scale: of the ends of the interval, in the unit of the value's text."""
    if estimate is None:
        return TableCell(units.EMPTY)
    ends = [units.number(end * scale) for end in estimate[1:] if end is not None]
    return TableCell(format_value(estimate.value), units.INTERVAL_DASH.join(ends) if len(ends) == 2 else "")


def make_error_cell(error: Estimate | None) -> TableCell:
    """An error with its interval over layers, or that it is exact."""
    is_rounding = error is not None and error.value < ROUNDING_ERROR
    return TableCell(EXACT_TEXT) if is_rounding else make_estimate_cell(error)


def add_errors(figure: PaperFigure, plot_rows: PlotRows) -> PaperFigure:
    """Add the errors of mechanisms whose time or memory a figure shows: to the picture's symbols, a note on the
    conditions, and a column unless none was measured. Of a baseline only the error of full attention is known."""
    labels = {label for column in figure.columns for label in column.cells}
    decisions = [decision for decision in plot_rows.decisions if decision.label in labels]
    rows = plot_rows.rows.drop_duplicates("label")
    rows = rows.loc[rows["label"].isin(labels), ["label", "variant"]].to_dict("records")
    cells = {row["label"]: TableCell(EXACT_TEXT if is_exact(row) else units.EMPTY) for row in rows}
    cells |= {decision.label: make_error_cell(decision.error) for decision in decisions}
    errors = [f"{d.label} {cells[d.label].text}" for d in decisions if d.error]
    missing = [decision.label for decision in decisions if not decision.error]
    suffix = f"; not measured: {', '.join(missing)}" if missing else ""
    return replace(
        figure,
        notes=(*figure.notes, describe_errors(decisions)),
        symbols=(*figure.symbols, *([f"Error: {', '.join(errors)}{suffix}."] if errors else [])),
        error=TableColumn("Error", cells) if any(decision.error_on for decision in decisions) else None,
    )


def describe_errors(decisions: Sequence[Decision]) -> str:
    """The conditions under which errors were measured."""
    conditions = formatting.join_words(dict.fromkeys(decision.error_on for decision in decisions if decision.error_on))
    if not conditions:
        return "Errors against exact attention were not measured."
    return f"Error: relative error against exact attention ({conditions})."
