"""The columns of a paper's table, and a figure with its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    columns: tuple[TableColumn, ...]
    caption: str
    notes: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    error: TableColumn | None = None

    def list_labels(self) -> list[str]:
        """The labels in the picture and in the table."""
        labels = [label for column in self.columns for label in column.cells]
        return [*labels, *(line.label for line in self.panel.lines)]

    def list_notes(self, *, with_symbols: bool) -> tuple[str, ...]:
        """The notes, ``with_symbols`` also those on the picture's symbols."""
        return (*(self.symbols if with_symbols else ()), *self.notes)


def make_estimate_cell(
    estimate: Estimate | None, format_value: Callable[[float], str] = units.number, scale: float = 1
) -> TableCell:
    """A value with its interval, if it has one. scale: of the ends of the interval, in the unit of the value's text."""
    if estimate is None:
        return TableCell(units.EMPTY)
    low, high = estimate.low, estimate.high
    interval = (
        "" if low is None or high is None else units.INTERVAL_DASH.join(map(units.number, (low * scale, high * scale)))
    )
    return TableCell(format_value(estimate.value), interval)


# -- errors of mechanisms whose time or memory a figure shows ----------------------------------------------------------


def list_decisions(plot_rows: PlotRows, labels: Sequence[str]) -> list[Decision]:
    """The decisions on these mechanisms, fastest first."""
    return [decision for decision in plot_rows.decisions if decision.label in labels]


def make_error_column(plot_rows: PlotRows, labels: Iterable[str], decisions: Sequence[Decision]) -> TableColumn | None:
    """The errors of mechanisms; None if none was measured. Of labels without a decision, the baseline's, only full
    attention has a known error."""
    if all(decision.error_on is None for decision in decisions):
        return None
    rows = plot_rows.rows[["label", "variant"]].drop_duplicates("label")
    cells = {row["label"]: TableCell(EXACT_TEXT) for row in rows.to_dict("records") if is_exact(row)}
    cells |= {decision.label: _make_error_cell(decision) for decision in decisions}
    return TableColumn("Error", {label: cells.get(label, TableCell(units.EMPTY)) for label in labels})


def _make_error_cell(decision: Decision) -> TableCell:
    """The error with its interval over layers, or that it is exact or not measured."""
    if decision.error is None:
        return TableCell(units.EMPTY)
    if decision.error < ROUNDING_ERROR:
        return TableCell(EXACT_TEXT)
    return make_estimate_cell(Estimate(decision.error, *(decision.error_interval or ())))


def list_errors(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """The errors of the mechanisms in a picture of times or memory."""
    errors = [f"{d.label} {_make_error_cell(d).text}" for d in decisions if d.error is not None]
    missing = [decision.label for decision in decisions if decision.error is None]
    suffix = f"; not measured: {', '.join(missing)}" if missing else ""
    return (f"Error: {', '.join(errors)}{suffix}.",) if errors else ()


def describe_errors(decisions: Sequence[Decision]) -> tuple[str, ...]:
    """The conditions under which errors were measured."""
    conditions = formatting.join_words(dict.fromkeys(decision.error_on for decision in decisions if decision.error_on))
    if not conditions:
        return ("Errors against exact attention were not measured.",)
    return (f"Error: relative error against exact attention ({conditions}).",)
