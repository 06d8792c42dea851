"""The figures for papers, each with its table: speed, memory, Pareto front, crossovers, approximation error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import formatting, select
from ..answers.crossovers import Crossover, format_crossover
from ..answers.decision_table import Decision, choose_lengths
from ..answers.pareto import classify_points, list_points
from ..approximation_errors import EXACT_TEXT, NOT_MEASURED_TEXT, ROUNDING_ERROR, compute_error_interval
from ..drawing.figures import Panel, PlotContext
from ..drawing.length_plots import SPEEDUP, LengthPlot, plan_length_plots
from ..drawing.style import LineStyles
from ..sections import approximation, decode_cost, speed, tradeoffs
from ..sections.tradeoffs import CostName
from .crossover_figure import draw_crossovers
from .selection import PlotRows

MAX_LINES, MAX_POINTS = 8, 24  # that a reader can distinguish: lines along lengths, and points


class TableCell(NamedTuple):
    """The text of a cell and its interval."""

    text: str
    interval: str = ""


@dataclass(frozen=True)
class PaperFigure:
    """A figure and its table. head, body: the first column holds labels."""

    panel: Panel
    caption: str
    head: tuple[str, ...]
    body: tuple[tuple[TableCell, ...], ...]


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure. rank: list the labels that it can show, by priority. make: draw these labels. count: number of
    mechanisms that decides between configurations. compares_outputs: whether it shows rows of fidelity, not times."""

    rank: Callable[[PlotRows], list[str]]
    make: Callable[[PlotRows, Sequence[str], LineStyles], PaperFigure]
    max_lines: int = MAX_LINES
    compares_outputs: bool = False
    count_points: Callable[[PlotRows], int] | None = None

    def count(self, plot_rows: PlotRows) -> int:
        """Number of mechanisms that it can show."""
        return self.count_points(plot_rows) if self.count_points else len(self.rank(plot_rows))


def choose_figure(name: str, against: CostName = "time") -> FigureKind:
    """The kind of figure by its name. against: the cost axis of a Pareto front."""
    if name == "front":
        make, count_points = partial(_make_front_figure, against), partial(_count_inexact_points, against)
        return FigureKind(_rank_by_speedup, make, MAX_POINTS, count_points=count_points)
    return FIGURES[name]


def _make_estimate_cell(
    estimate: Estimate | None, format_value: Callable[[float], str] = units.number, suffix: str = ""
) -> TableCell:
    if estimate is None:
        return TableCell(units.EMPTY)
    has_interval = estimate.low is not None and estimate.high is not None
    interval = f"{units.number(estimate.low)}{units.INTERVAL_DASH}{units.number(estimate.high)}" if has_interval else ""
    return TableCell(format_value(estimate.value) + suffix, interval)


# -- decision tables ------------------------------------------------------------------------------------------------


def _rank_by_speedup(plot_rows: PlotRows) -> list[str]:
    """Labels by speed at the longest length, fastest first."""
    return [decision.label for decision in plot_rows.decisions]


def _list_decisions(plot_rows: PlotRows, labels: Sequence[str]) -> list[Decision]:
    return [decision for decision in plot_rows.decisions if decision.label in labels]


def _make_error_cell(decision: Decision) -> TableCell:
    """The error with its interval over layers, or that it is exact or not measured."""
    if decision.error is None:
        return TableCell(NOT_MEASURED_TEXT)
    if decision.error < ROUNDING_ERROR:
        return TableCell(EXACT_TEXT)
    return _make_estimate_cell(Estimate(decision.error, *(decision.error_interval or ())))


def _make_decision_figure(
    panel: Panel, head: Sequence[str], cells: Mapping[str, Sequence[TableCell]], decisions: Sequence[Decision]
) -> PaperFigure:
    """A figure of times or memory, with the approximation errors in its caption and in the last column.

    head, cells: of the columns between the label and the error, cells by label. Of labels without a decision, the
    baseline's, only full attention has a known error.
    """
    errors = {"full": TableCell(EXACT_TEXT)} | {decision.label: _make_error_cell(decision) for decision in decisions}
    body = tuple(
        (TableCell(label), *row, errors.get(label, TableCell(NOT_MEASURED_TEXT))) for label, row in cells.items()
    )
    caption = panel.caption + _describe_errors(decisions)
    return PaperFigure(panel, caption, ("Mechanism", *head, "Error"), body)


def _describe_errors(decisions: Sequence[Decision]) -> str:
    """Describe the approximation errors of mechanisms in a figure of times or memory."""
    error_texts = {decision.label: _make_error_cell(decision).text for decision in decisions}
    measured = [f"{label} {text}" for label, text in error_texts.items() if text != NOT_MEASURED_TEXT]
    unmeasured = [label for label, text in error_texts.items() if text == NOT_MEASURED_TEXT]
    inputs = formatting.join_words(dict.fromkeys(decision.error_on for decision in decisions if decision.error_on))
    text = f" Error against exact attention{f' ({inputs})' if inputs else ''}: {formatting.join_words(measured)}."
    unmeasured_text = f" Error not measured: {formatting.join_words(unmeasured)}."
    return (text if measured else "") + (unmeasured_text if unmeasured else "")


# -- speed and memory -----------------------------------------------------------------------------------------------


def _draw_over_length(kind: LengthPlot, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> Panel:
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels) | plot_rows.rows["is_baseline"]]
    setting = select.SettingRows({name: plot_rows.config[name] for name in select.SETTING_COLUMNS}, rows)
    kind = kind._replace(max_lines=MAX_LINES + 1)  # with the baseline
    (plan,) = plan_length_plots(setting, (kind,), PlotContext(line_styles))
    panel = plan.make_picture()
    assert isinstance(panel, Panel)
    return panel


def _make_speed_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    decisions, lengths = _list_decisions(plot_rows, labels), plot_rows.lengths
    preposition = "After" if plot_rows.config["mode"] == "decode" else "At"
    head = [f"{preposition} {units.short_length(n)}" for n in lengths]
    cells = {d.label: [_make_estimate_cell(d.speedups.get(n), units.ratio) for n in lengths] for d in decisions}
    return _make_decision_figure(_draw_over_length(SPEEDUP, plot_rows, labels, line_styles), head, cells, decisions)


def _choose_memory_kind(plot_rows: PlotRows) -> LengthPlot:
    """State size for decoding, peak memory otherwise."""
    return decode_cost.STATE_PLOT if plot_rows.config["mode"] == "decode" else speed.MEMORY_PLOT


def _rank_by_memory(plot_rows: PlotRows) -> list[str]:
    """Labels by their longest measured length, longest first, then by memory there, least first."""
    column = _choose_memory_kind(plot_rows).column
    measured_rows = plot_rows.rows[(plot_rows.rows[column] > 0) & ~plot_rows.rows["is_baseline"].astype(bool)]
    last = measured_rows.sort_values("seq_len", kind="stable").groupby("label", sort=False).tail(1)
    return last.sort_values(["seq_len", column, "label"], ascending=[False, True, True])["label"].tolist()


def _make_memory_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    kind = _choose_memory_kind(plot_rows)
    arrays_by_label = select.split_variants(plot_rows.rows)
    sizes = {
        label: dict(zip(*select.sort_series(arrays, kind.column), strict=True))
        for label, arrays in arrays_by_label.items()
    }
    lengths = choose_lengths({int(n) for label in labels for n in sizes[label]})
    table_labels = [*sorted(label for label in plot_rows.baseline_labels if sizes[label]), *labels]
    cells = {label: [TableCell(units.size(sizes[label].get(float(n)))) for n in lengths] for label in table_labels}
    decisions = {decision.label: decision for decision in plot_rows.decisions}
    panel = _draw_over_length(kind, plot_rows, labels, line_styles)
    listed = [decisions[label] for label in labels if label in decisions]
    return _make_decision_figure(panel, [units.short_length(n) for n in lengths], cells, listed)


# -- fronts, crossovers, errors -------------------------------------------------------------------------------------


def _count_inexact_points(against: CostName, plot_rows: PlotRows) -> int:
    """Number of mechanisms with an approximation error; 0 for a single one, which makes no front."""
    if plot_rows.decision_table is None:
        return 0
    points = list_points(plot_rows.decision_table, plot_rows.decision_table.lengths[-1], against)
    count = sum(point.error.value >= ROUNDING_ERROR for point in points)
    return count if count > 1 else 0


def _make_front_figure(
    against: CostName, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles
) -> PaperFigure:
    assert plot_rows.decision_table is not None
    table = replace(plot_rows.decision_table, decisions=tuple(_list_decisions(plot_rows, labels)))
    ranked = classify_points(list_points(table, table.lengths[-1], against))
    panel = tradeoffs.make_pareto_panel(table, against, ranked, line_styles)
    status_texts = {"front": "on the front", "dominated": "dominated by ", "unclear": "not distinguishable from "}
    body = []
    for p in sorted(ranked, key=lambda p: p.point.cost.value):
        is_exact = p.point.error.value < ROUNDING_ERROR
        error_cell = TableCell(EXACT_TEXT) if is_exact else _make_estimate_cell(p.point.error)
        status_cell = TableCell(status_texts[p.status] + (p.beaten_by[0] if p.beaten_by else ""))
        body.append((TableCell(p.point.label), _make_estimate_cell(p.point.cost, units.ratio), error_cell, status_cell))
    head = ("Mechanism", f"{against.capitalize()} over {table.baseline}'s", "Error", "Pareto front")
    return PaperFigure(panel, panel.caption, head, tuple(body))


def _make_crossover_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    decisions = [decision for decision in _list_decisions(plot_rows, labels) if decision.crossover is not None]
    cells = {}
    for decision in decisions:
        length, longest = decision.longest_speedup or (0, None)
        longest_cell = _make_estimate_cell(longest, units.ratio, f" at {units.short_length(length)}")
        crossover = decision.crossover
        assert crossover is not None
        cells[decision.label] = (TableCell(format_crossover(crossover)), _show_interpolated(crossover), longest_cell)
    head = ("Faster from", "Interpolated", "Speedup at the longest")
    return _make_decision_figure(draw_crossovers(plot_rows, decisions, line_styles), head, cells, decisions)


def _show_interpolated(crossover: Crossover) -> TableCell:
    if crossover.kind != "from" or crossover.estimate is None:
        return TableCell(units.EMPTY)
    has_interval = crossover.low is not None and crossover.high is not None
    interval = f"{crossover.low:.0f}{units.INTERVAL_DASH}{crossover.high:.0f}" if has_interval else ""
    return TableCell(f"{crossover.estimate:.0f}", interval)


def _rank_by_error(plot_rows: PlotRows) -> list[str]:
    """Labels by error, lowest first, without those that are exact up to rounding."""
    means = plot_rows.rows.groupby("label")["relative_error"].mean().sort_values(kind="stable")
    return [str(label) for label, mean in means.items() if mean >= ROUNDING_ERROR]


def _make_error_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    means = plot_rows.rows.groupby("label")["relative_error"].transform("mean")
    # mechanisms that are exact up to rounding are named in the caption, not drawn
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels) | (means < ROUNDING_ERROR)]
    get = plot_rows.config.get
    piece = select.Slice(None, get("causal"), rows, get("inputs"), get("seq_len"))
    panel = approximation.make_dot_panel(piece, line_styles)
    assert panel is not None
    errors = rows.groupby("label")["relative_error"].apply(list)
    body = []
    for label in labels:
        mean, (low, high) = sum(errors[label]) / len(errors[label]), compute_error_interval(errors[label])
        estimate = Estimate(mean, low, high) if units.is_present(low) else Estimate(mean)
        body.append((TableCell(label), _make_estimate_cell(estimate)))
    body.append((TableCell("mean of v (null)"), TableCell(units.number(rows["mean_value_error"].mean()))))
    return PaperFigure(panel, panel.caption, ("Mechanism", "Error against exact attention"), tuple(body))


FIGURES: Mapping[str, FigureKind] = {
    "speed": FigureKind(_rank_by_speedup, _make_speed_figure),
    "memory": FigureKind(_rank_by_memory, _make_memory_figure),
    "crossover": FigureKind(_rank_by_speedup, _make_crossover_figure, MAX_POINTS),
    "loss": FigureKind(_rank_by_error, _make_error_figure, MAX_POINTS, compares_outputs=True),
}
