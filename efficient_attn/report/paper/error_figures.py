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
from .table_columns import PaperFigure, TableCell, TableColumn, describe_errors, list_decisions, make_estimate_cell

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
    if plot_rows.decision_table is None:
        return 0
    points = list_points(plot_rows.decision_table, plot_rows.decision_table.lengths[-1], against)
    count = sum(point.error.value >= ROUNDING_ERROR for point in points)
    return count if count > 1 else 0


def make_front_figure(
    against: CostName, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles
) -> PaperFigure:
    """Errors against a cost at the longest length, with the Pareto front."""
    assert plot_rows.decision_table is not None
    table = replace(plot_rows.decision_table, decisions=tuple(list_decisions(plot_rows, labels)))
    ranked = sorted(classify_points(list_points(table, table.lengths[-1], against)), key=lambda p: p.point.cost.value)
    costs, errors, statuses = {}, {}, {}
    for p in ranked:
        label, is_exact = p.point.label, p.point.error.value < ROUNDING_ERROR
        costs[label] = make_estimate_cell(p.point.cost, units.ratio)
        errors[label] = TableCell(EXACT_TEXT) if is_exact else make_estimate_cell(p.point.error)
        statuses[label] = TableCell(p.status)
    cost = tradeoffs.COST_AXES[against]
    length = "" if "seq_len" in plot_rows.config else f" at {units.short_length(table.lengths[-1])}"
    return PaperFigure(
        tradeoffs.make_pareto_panel(table, against, ranked, line_styles),
        (TableColumn(cost.capitalize(), costs), TableColumn("Error", errors), TableColumn("Pareto", statuses)),
        f"Relative error against {cost} over that of {table.baseline}{length}, with 95% intervals",
        (*describe_errors(table.decisions), *([UNCLEAR_NOTE] if "unclear" in (p.status for p in ranked) else [])),
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
    get = plot_rows.config.get
    piece = select.Slice(None, get("causal"), rows, get("inputs"), get("seq_len"))
    panel = approximation.make_dot_panel(piece, line_styles)
    assert panel is not None
    errors = rows.groupby("label")["relative_error"].apply(list)
    cells = {NULL_NAME: TableCell(units.number(rows["mean_value_error"].mean()))}
    cells |= {str(label): TableCell(EXACT_TEXT) for label in errors.index if label not in labels}
    for label in labels:
        mean, (low, high) = sum(errors[label]) / len(errors[label]), compute_error_interval(errors[label])
        cells[label] = make_estimate_cell(Estimate(mean, low, high) if units.is_present(low) else Estimate(mean))
    return PaperFigure(
        panel,
        (TableColumn("Relative error", cells),),
        "Relative error against exact attention, mean and 95% interval over layers",
        symbols=("Bands: errors of predicting the mean of v and zero.",),
    )
