"""Figures of approximation errors: against cost, with the Pareto front, and one row per mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ... import units
from ...results.stats import Estimate
from .. import select
from ..answers.pareto import classify_points, list_points
from ..approximation_errors import EXACT_TEXT, ROUNDING_ERROR, compute_error_interval
from ..drawing.style import LineStyles
from ..gather import Frame
from ..sections import approximation, tradeoffs
from ..sections.tradeoffs import CostName
from .selection import Filters, PlotRows, list_timed_rows
from .table_columns import PaperFigure, TableCell, TableColumn, describe_errors, make_error_cell, make_estimate_cell

UNCLEAR_NOTE = "Unclear: not significantly different from a mechanism that seems better in both."
NULL_NAME = "mean of v (null)"


def list_front_rows(rows: Frame, filters: Filters) -> list[PlotRows]:
    """All timed configurations, and each at each of several requested lengths."""
    lengths = filters.get("seq_len", ())
    if len(lengths) < 2:
        return list_timed_rows(rows, filters)
    return [
        replace(plot_rows, config={**plot_rows.config, "seq_len": length})
        for length in lengths
        for plot_rows in list_timed_rows(rows, {**filters, "seq_len": (length,)})
    ]


def count_inexact_points(against: CostName, plot_rows: PlotRows) -> int:
    """Number of mechanisms with an approximation error; 0 for a single one, which makes no front."""
    points = list_points(plot_rows.decision_table, against) if plot_rows.decision_table else []
    count = sum(point.error.value >= ROUNDING_ERROR for point in points)
    return count if count > 1 else 0


def make_front_figure(
    against: CostName, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles
) -> PaperFigure:
    """Errors against a cost at the longest length, with the Pareto front."""
    assert plot_rows.decision_table is not None
    decisions = tuple(decision for decision in plot_rows.decisions if decision.label in labels)
    table = replace(plot_rows.decision_table, decisions=decisions)
    ranked = sorted(classify_points(list_points(table, against)), key=lambda p: p.point.cost.value)
    columns = {
        tradeoffs.COST_AXES[against][0]: {p.point.label: make_estimate_cell(p.point.cost, units.ratio) for p in ranked},
        "error": {p.point.label: make_error_cell(p.point.error) for p in ranked},
        "pareto": {p.point.label: TableCell(p.status) for p in ranked},
    }
    length = "" if "seq_len" in plot_rows.config else f" at {units.short_length(table.lengths[-1])}"
    unclear = (UNCLEAR_NOTE,) if any(p.status == "unclear" for p in ranked) else ()
    return PaperFigure(
        tradeoffs.make_pareto_panel(table, against, ranked, line_styles),
        [TableColumn(head.capitalize(), cells) for head, cells in columns.items()],
        f"Relative error against {next(iter(columns))} over that of {table.baseline}{length}, with 95% intervals",
        (describe_errors(decisions), *unclear),
        ("Line: Pareto front; grey: significantly dominated; horizontal line: predicting the mean of v.",),
    )


def rank_by_error(plot_rows: PlotRows) -> list[str]:
    """Labels by error, lowest first, without those that are exact up to rounding."""
    means = plot_rows.rows.groupby("label")["relative_error"].mean().sort_values(kind="stable")
    return [str(label) for label, mean in means.items() if mean >= ROUNDING_ERROR]


def make_error_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """Errors next to that of a trivial predictor."""
    means = plot_rows.rows.groupby("label")["relative_error"].transform("mean")
    # mechanisms that are exact up to rounding are listed in a lane or a note of the panel
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels) | (means < ROUNDING_ERROR)]
    config = plot_rows.config
    piece = select.Slice(None, config.get("causal"), rows, config.get("inputs"), config.get("seq_len"))
    panel = approximation.make_dot_panel(piece, line_styles)
    assert panel is not None
    errors = rows.groupby("label")["relative_error"].apply(list)
    cells = {NULL_NAME: TableCell(units.number(rows["mean_value_error"].mean()))}
    cells |= {str(label): TableCell(EXACT_TEXT) for label in errors.index if label not in labels}
    for label in labels:
        ends = [end for end in compute_error_interval(errors[label]) if units.is_present(end)]
        cells[label] = make_estimate_cell(Estimate(sum(errors[label]) / len(errors[label]), *ends))
    return PaperFigure(
        panel,
        (TableColumn("Relative error", cells),),
        "Relative error against exact attention, mean and 95% interval over layers",
        symbols=("Bands: errors of predicting the mean of v and zero.",),
    )
