"""The figures for papers, each with its table: speed, memory, Pareto front, crossovers, approximation error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import formatting, select
from ..answers.crossovers import format_crossover
from ..answers.decision_table import Decision, choose_lengths
from ..answers.pareto import classify_points, list_points
from ..approximation_errors import EXACT_TEXT, NOT_MEASURED_TEXT, ROUNDING_ERROR, compute_error_interval
from ..drawing.figures import Panel
from ..drawing.length_plots import SPEEDUP, LengthPlot, plan_length_plots
from ..drawing.plot_plans import PlotContext
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
    return TableCell(units.number(decision.error), _format_interval(decision.error_interval))


def _describe_errors(decisions: Sequence[Decision]) -> str:
    """Describe the approximation errors of mechanisms in a figure of times or memory."""
    error_cells = [(decision.label, _make_error_cell(decision)) for decision in decisions]
    measured = [f"{label} {cell.text}" for label, cell in error_cells if cell.text != NOT_MEASURED_TEXT]
    unmeasured = [label for label, cell in error_cells if cell.text == NOT_MEASURED_TEXT]
    inputs = formatting.join_words(dict.fromkeys(decision.error_on for decision in decisions if decision.error_on))
    text = f" Error against exact attention{f' ({inputs})' if inputs else ''}: {formatting.join_words(measured)}."
    unmeasured_text = f" Error not measured: {formatting.join_words(unmeasured)}."
    return (text if measured else "") + (unmeasured_text if unmeasured else "")


def _format_interval(ends: tuple[float, float] | None) -> str:
    return f"{units.number(ends[0])}{units.INTERVAL_DASH}{units.number(ends[1])}" if ends else ""


def _make_estimate_cell(
    estimate: Estimate | None, format_value: Callable[[float], str] = units.number, suffix: str = ""
) -> TableCell:
    if estimate is None:
        return TableCell(units.EMPTY)
    ends = (estimate.low, estimate.high) if estimate.low is not None and estimate.high is not None else None
    return TableCell(format_value(estimate.value) + suffix, _format_interval(ends))


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
    decisions = _list_decisions(plot_rows, labels)
    panel = _draw_over_length(SPEEDUP, plot_rows, labels, line_styles)
    body = [
        (
            TableCell(decision.label),
            *(_make_estimate_cell(decision.speedups.get(n), units.ratio) for n in plot_rows.lengths),
            _make_error_cell(decision),
        )
        for decision in decisions
    ]
    preposition = "After" if plot_rows.config["mode"] == "decode" else "At"
    head = ("Mechanism", *(f"{preposition} {units.short_length(n)}" for n in plot_rows.lengths), "Error")
    return PaperFigure(panel, panel.caption + _describe_errors(decisions), head, tuple(body))


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
    panel = _draw_over_length(kind, plot_rows, labels, line_styles)
    groups = select.split_variants(plot_rows.rows)
    baseline_labels = plot_rows.baseline_labels
    decisions = {decision.label: decision for decision in plot_rows.decisions}
    groups = {label: dict(zip(*select.sort_series(a, kind.column), strict=True)) for label, a in groups.items()}
    lengths = choose_lengths({int(n) for label in labels for n in groups[label]})
    body = []
    for label in [*sorted(label for label in baseline_labels if groups[label]), *labels]:
        is_exact = label == "full" and label in baseline_labels
        error_cell = TableCell(EXACT_TEXT if is_exact else NOT_MEASURED_TEXT)
        error_cell = _make_error_cell(decisions[label]) if label in decisions else error_cell
        sizes = (TableCell(units.size(groups[label].get(float(n)))) for n in lengths)
        body.append((TableCell(label), *sizes, error_cell))
    head = ("Mechanism", *map(units.short_length, lengths), "Error")
    caption = panel.caption + _describe_errors([decisions[label] for label in labels if label in decisions])
    return PaperFigure(panel, caption, head, tuple(body))


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
    length = table.lengths[-1]
    ranked = classify_points(list_points(table, length, against))
    panel = tradeoffs.make_pareto_panel(table, against, ranked, line_styles)
    exact = {p.point.label for p in ranked if p.point.error.value < ROUNDING_ERROR}
    status_texts = {"front": "on the front", "dominated": "dominated by ", "unclear": "not distinguishable from "}
    body = tuple(
        (
            TableCell(p.point.label),
            _make_estimate_cell(p.point.cost, units.ratio),
            TableCell(EXACT_TEXT) if p.point.label in exact else _make_estimate_cell(p.point.error),
            TableCell(status_texts[p.status] + (p.beaten_by[0] if p.beaten_by else "")),
        )
        for p in sorted(ranked, key=lambda p: p.point.cost.value)
    )
    head = ("Mechanism", f"{against.capitalize()} over {table.baseline}'s", "Error", "Pareto front")
    return PaperFigure(panel, panel.caption, head, body)


def _make_crossover_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    decisions = [decision for decision in _list_decisions(plot_rows, labels) if decision.crossover is not None]
    panel = draw_crossovers(plot_rows, decisions, line_styles)
    body = []
    for decision in decisions:
        assert decision.crossover is not None
        estimate, low, high = decision.crossover.estimate, decision.crossover.low, decision.crossover.high
        estimate_cell = TableCell(units.EMPTY)
        if decision.crossover.kind == "from" and estimate is not None:
            has_interval = low is not None and high is not None
            estimate_cell = TableCell(
                f"{estimate:.0f}", f"{low:.0f}{units.INTERVAL_DASH}{high:.0f}" if has_interval else ""
            )
        length, longest = decision.longest_speedup or (0, None)
        longest_cell = _make_estimate_cell(longest, units.ratio, f" at {units.short_length(length)}")
        crossover_cell = TableCell(format_crossover(decision.crossover))
        body.append(
            (TableCell(decision.label), crossover_cell, estimate_cell, longest_cell, _make_error_cell(decision))
        )
    head = ("Mechanism", "Faster from", "Interpolated", "Speedup at the longest", "Error")
    return PaperFigure(panel, panel.caption + _describe_errors(decisions), head, tuple(body))


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
