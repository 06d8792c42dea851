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
from ..drawing.length_plots import SPEEDUP, LengthPlot, Scene, plan_length_plots
from ..drawing.style import Look
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
    """A kind of figure. count: number of mechanisms that it can show. rank: their labels by priority. make: draw these
    labels."""

    count: Callable[[PlotRows], int]
    rank: Callable[[PlotRows], list[str]]
    make: Callable[[PlotRows, Sequence[str], Mapping[str, Look]], PaperFigure]
    max_lines: int = MAX_LINES
    compares_outputs: bool = False  # shows rows of fidelity, not times


def choose_figure(name: str, against: CostName = "time") -> FigureKind:
    """The kind of figure by its name; ``against``: the cost axis of quality figures."""
    if name == "front":
        return FigureKind(
            partial(_count_inexact, against), _rank_by_speedup, partial(_make_front_figure, against), MAX_POINTS
        )
    return FIGURES[name]


# -- decision tables ------------------------------------------------------------------------------------------------


def _count_decisions(plot_rows: PlotRows) -> int:
    return len(plot_rows.decisions)


def _rank_by_speedup(plot_rows: PlotRows) -> list[str]:
    """Labels by speed at the longest length, fastest first."""
    return [decision.label for decision in plot_rows.decisions]


def _list_decisions(plot_rows: PlotRows, labels: Sequence[str]) -> list[Decision]:
    return [decision for decision in plot_rows.decisions if decision.label in labels]


def _make_error_cell(decision: Decision) -> TableCell:
    """The error with its interval over layers, or a text for exact and unmeasured ones."""
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
    text = (
        f" Error against exact attention{f' ({inputs})' if inputs else ''}: {formatting.join_words(measured)}."
        if measured
        else ""
    )
    return text + (f" Error not measured: {formatting.join_words(unmeasured)}." if unmeasured else "")


def _format_interval(ends: tuple[float, float] | None) -> str:
    return f"{units.number(ends[0])}{units.INTERVAL_DASH}{units.number(ends[1])}" if ends else ""


def _make_ratio_cell(estimate: Estimate | None) -> TableCell:
    if estimate is None:
        return TableCell(units.EMPTY)
    ends = (estimate.low, estimate.high) if estimate.low is not None and estimate.high is not None else None
    return TableCell(units.ratio(estimate.value), _format_interval(ends))


def _make_length_heads(plot_rows: PlotRows) -> list[str]:
    return [
        f"{'After' if plot_rows.config['mode'] == 'decode' else 'At'} {units.short_length(n)}"
        for n in plot_rows.lengths
    ]


# -- speed and memory -----------------------------------------------------------------------------------------------


def _draw_over_length(kind: LengthPlot, plot_rows: PlotRows, labels: Sequence[str], looks: Mapping[str, Look]) -> Panel:
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels) | plot_rows.rows["is_baseline"]]
    setting = select.SettingRows({name: plot_rows.config[name] for name in select.SETTING_COLUMNS}, rows)
    max_lines = MAX_LINES + 1  # with the baseline
    (planned,) = plan_length_plots(
        setting, (kind._replace(max_lines=max_lines),), Scene(looks, config_text=plot_rows.format_config())
    )
    panel = planned.make_picture()
    assert isinstance(panel, Panel)
    return panel


def _make_speed_figure(plot_rows: PlotRows, labels: Sequence[str], looks: Mapping[str, Look]) -> PaperFigure:
    decisions = _list_decisions(plot_rows, labels)
    panel = _draw_over_length(SPEEDUP, plot_rows, labels, looks)
    body = [
        (
            TableCell(decision.label),
            *(_make_ratio_cell(decision.speedups.get(n)) for n in plot_rows.lengths),
            _make_error_cell(decision),
        )
        for decision in decisions
    ]
    head = ("Mechanism", *_make_length_heads(plot_rows), "Error")
    return PaperFigure(panel, panel.caption + _describe_errors(decisions), head, tuple(body))


def _choose_memory_kind(plot_rows: PlotRows) -> LengthPlot:
    """State size for decoding, peak memory otherwise."""
    return decode_cost.STATE_PLOT if plot_rows.config["mode"] == "decode" else speed.MEMORY_PLOT


def _rank_by_memory(plot_rows: PlotRows) -> list[str]:
    """Labels by their longest measured length, longest first, then by memory there, least first."""
    column = _choose_memory_kind(plot_rows).column
    measured_rows = plot_rows.rows[(plot_rows.rows[column] > 0) & ~plot_rows.rows["is_baseline"].astype(bool)]
    last = measured_rows.sort_values("seq_len", kind="stable").groupby("label", sort=False).tail(1)
    ranked = sorted(zip(*(last[n].tolist() for n in ("seq_len", column, "label")), strict=True), key=_make_sort_key)
    return [label for _, _, label in ranked]


def _make_sort_key(line: tuple[float, float, str]) -> tuple[float, float, str]:
    length, value, label = line
    return -length, value, label


def _make_memory_figure(plot_rows: PlotRows, labels: Sequence[str], looks: Mapping[str, Look]) -> PaperFigure:
    kind = _choose_memory_kind(plot_rows)
    panel = _draw_over_length(kind, plot_rows, labels, looks)
    groups = select.split_variants(plot_rows.rows)
    baseline_labels = {str(label) for label in plot_rows.rows.loc[plot_rows.rows["is_baseline"].astype(bool), "label"]}
    decisions = {decision.label: decision for decision in plot_rows.decisions}
    bytes_by_label = {
        label: dict(zip(*select.sort_series(groups[label], kind.column), strict=True)) for label in groups
    }
    lengths = choose_lengths({int(n) for label in labels for n in bytes_by_label[label]})
    body = []
    for label in [*sorted(label for label in baseline_labels if bytes_by_label[label]), *labels]:
        bytes_by_length = bytes_by_label[label]
        error_cell = (
            TableCell(EXACT_TEXT) if label in baseline_labels and label == "full" else TableCell(NOT_MEASURED_TEXT)
        )
        error_cell = _make_error_cell(decisions[label]) if label in decisions else error_cell
        body.append(
            (TableCell(label), *(TableCell(units.size(bytes_by_length.get(float(n)))) for n in lengths), error_cell)
        )
    head = ("Mechanism", *(units.short_length(n) for n in lengths), "Error")
    return PaperFigure(
        panel, panel.caption + _describe_errors([decisions[n] for n in labels if n in decisions]), head, tuple(body)
    )


# -- fronts, crossovers, errors -------------------------------------------------------------------------------------


def _count_inexact(against: CostName, plot_rows: PlotRows) -> int:
    if plot_rows.decision_table is None:
        return 0
    points = list_points(plot_rows.decision_table, plot_rows.decision_table.lengths[-1], against)
    count = sum(point.error.value >= ROUNDING_ERROR for point in points)
    return count if count > 1 else 0


def _make_front_figure(
    against: CostName, plot_rows: PlotRows, labels: Sequence[str], looks: Mapping[str, Look]
) -> PaperFigure:
    assert plot_rows.decision_table is not None
    table = replace(plot_rows.decision_table, decisions=tuple(_list_decisions(plot_rows, labels)))
    length = table.lengths[-1]
    ranked = classify_points(list_points(table, length, against))
    panel = tradeoffs.make_pareto_panel(table, against, ranked, Scene(looks, config_text=plot_rows.format_config()))
    exact = {p.point.label for p in ranked if p.point.error.value < ROUNDING_ERROR}
    status_texts = {"front": "on the front", "dominated": "dominated by ", "unclear": "not distinguishable from "}
    body = tuple(
        (
            TableCell(p.point.label),
            _make_ratio_cell(p.point.cost),
            TableCell(EXACT_TEXT) if p.point.label in exact else _make_estimate_cell(p.point.error),
            TableCell(status_texts[p.status] + (p.beaten_by[0] if p.beaten_by else "")),
        )
        for p in sorted(ranked, key=lambda p: p.point.cost.value)
    )
    inputs = formatting.join_words(dict.fromkeys(p.error_on for p in table.decisions if p.error_on))
    head = ("Mechanism", f"{against.capitalize()} over {table.baseline}'s", "Error", "Pareto front")
    return PaperFigure(panel, f"{panel.caption} Errors on {inputs}." if inputs else panel.caption, head, body)


def _make_estimate_cell(estimate: Estimate) -> TableCell:
    ends = (estimate.low, estimate.high) if estimate.low is not None and estimate.high is not None else None
    return TableCell(units.number(estimate.value), _format_interval(ends))


def _make_crossover_figure(plot_rows: PlotRows, labels: Sequence[str], looks: Mapping[str, Look]) -> PaperFigure:
    decisions = [decision for decision in _list_decisions(plot_rows, labels) if decision.crossover is not None]
    panel = draw_crossovers(plot_rows, decisions, looks)
    body = []
    for decision in decisions:
        assert decision.crossover is not None
        estimate, ends = decision.crossover.estimate, (decision.crossover.low, decision.crossover.high)
        has_estimate = decision.crossover.kind == "from" and estimate is not None
        interval = "" if None in ends else f"{ends[0]:.0f}{units.INTERVAL_DASH}{ends[1]:.0f}"
        estimate_cell = TableCell(f"{estimate:.0f}", interval) if has_estimate else TableCell(units.EMPTY)
        length, last = decision.longest_speedup or (0, None)
        longest = _make_ratio_cell(last)
        longest = longest._replace(text=f"{longest.text} at {units.short_length(length)}") if last else longest
        body.append(
            (
                TableCell(decision.label),
                TableCell(format_crossover(decision.crossover)),
                estimate_cell,
                longest,
                _make_error_cell(decision),
            )
        )
    head = ("Mechanism", "Faster from", "Interpolated", "Speedup at the longest", "Error")
    return PaperFigure(panel, panel.caption + _describe_errors(decisions), head, tuple(body))


def _count_inexact_outputs(plot_rows: PlotRows) -> int:
    return int((plot_rows.rows.groupby("label")["relative_error"].mean() >= ROUNDING_ERROR).sum())


def _rank_by_error(plot_rows: PlotRows) -> list[str]:
    """Labels by error, lowest first, without those that are exact up to rounding."""
    means = plot_rows.rows.groupby("label")["relative_error"].mean().sort_values(kind="stable")
    return [str(label) for label, mean in means.items() if mean >= ROUNDING_ERROR]


def _make_error_figure(plot_rows: PlotRows, labels: Sequence[str], looks: Mapping[str, Look]) -> PaperFigure:
    means = plot_rows.rows.groupby("label")["relative_error"].transform("mean")
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels) | (means < ROUNDING_ERROR)]  # these are named, not drawn
    get = plot_rows.config.get
    piece = select.Slice(None, get("causal"), rows, get("inputs"), get("seq_len"))
    panel = approximation.make_dot_panel(piece, Scene(looks, config_text=plot_rows.format_config()))
    assert panel is not None
    errors = rows.groupby("label")["relative_error"].apply(list)
    body = []
    for label in labels:
        mean, (low, high) = (sum(errors[label]) / len(errors[label]), compute_error_interval(errors[label]))
        body.append(
            (TableCell(label), _make_estimate_cell(Estimate(mean, low, high) if low == low else Estimate(mean)))
        )
    nulls = [float(x) for x in rows["mean_value_error"].tolist() if units.is_present(x)]
    body.append((TableCell("mean of v (null)"), TableCell(units.number(sum(nulls) / len(nulls) if nulls else None))))
    return PaperFigure(panel, panel.caption, ("Mechanism", "Error against exact attention"), tuple(body))


FIGURES: Mapping[str, FigureKind] = {
    "speed": FigureKind(_count_decisions, _rank_by_speedup, _make_speed_figure),
    "memory": FigureKind(lambda place: len(_rank_by_memory(place)), _rank_by_memory, _make_memory_figure),
    "crossover": FigureKind(_count_decisions, _rank_by_speedup, _make_crossover_figure, MAX_POINTS),
    "loss": FigureKind(_count_inexact_outputs, _rank_by_error, _make_error_figure, MAX_POINTS, compares_outputs=True),
}
