"""Approximation error against cost: Pareto fronts by configuration and cost, with dominated points in grey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Literal, NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import formatting, select
from ..answers.decision_table import DecisionTable
from ..answers.pareto import RankedPoint, classify_points, list_points
from ..approximation_errors import ROUNDING_ERROR
from ..drawing import length_plots
from ..drawing.axes import compute_log_limits, make_y_ticks
from ..drawing.figures import Line, Panel
from ..drawing.panel_data import make_point
from ..drawing.style import FAINT, LineStyle
from ..gather import join_notes
from .model_pareto import find_pareto_points
from .section_blocks import Chapter, SectionBlock, SectionData

TITLE, ANCHOR = "Relative error against time, memory and state", "front"
MAX_TABLES = 4
INTRO = (
    "A point is a mechanism: lower cost is to the left, smaller error is below. Bars are 95% intervals, of the error "
    "over layers. The line is the Pareto front. Grey points are significantly dominated by another mechanism. Points "
    "whose intervals overlap with those of a seemingly better one are not significantly different: they keep their "
    "color and are named in the caption."
)
EXACT_FLOOR = 0.5  # position of exact mechanisms, relative to the smallest error above rounding


CostName = Literal["time", "memory", "state"]


class _CostAxis(NamedTuple):
    cost: CostName
    title: str
    draw_order: int


COST_AXES = (_CostAxis("time", "time", 0), _CostAxis("memory", "peak memory", 2), _CostAxis("state", "decode state", 2))


def make_chapter(decision_tables: Sequence[DecisionTable], section_data: SectionData) -> Chapter:
    """Plots of the decision tables with most mechanisms; at least two mechanisms must be inexact."""
    blocks: dict[str, SectionBlock] = {}
    ordered = sorted(
        decision_tables,
        key=lambda decision_table: -len(list_points(decision_table, decision_table.lengths[-1], "time")),
    )
    varying_columns = [
        name
        for name in select.SETTING_COLUMNS
        if len({str(decision_table.config[name]) for decision_table in decision_tables}) > 1
    ]
    for number, decision_table in enumerate(ordered[:MAX_TABLES], 1):
        title = formatting.format_setting(dict(decision_table.config), section_data.cpus)
        config_text = formatting.format_config(dict(decision_table.config), section_data.cpus)
        note = join_notes(section_data.run_notes, sorted(decision_table.run_ids))
        context = length_plots.PlotContext(
            section_data.line_styles,
            str(number) if varying_columns else "",
            ", ".join(filter(None, (note, config_text))),
        )
        plans = [plan for axis in COST_AXES for plan in _plan_axis(decision_table, axis, context)]
        if plans:
            blocks.setdefault(title, SectionBlock(title, config_text=context.config_text)).plans += plans
    return Chapter(TITLE, INTRO, list(blocks.values()), ANCHOR, "speed")


def _plan_axis(
    decision_table: DecisionTable, axis: _CostAxis, context: length_plots.PlotContext
) -> Iterator[length_plots.PlotPlan]:
    """Plan a plot if at least two mechanisms are inexact. Decoding has state instead of memory."""
    if (axis.cost == "state") != (decision_table.config["mode"] == "decode") and axis.cost != "time":
        return
    length = decision_table.lengths[-1]
    points = classify_points(list_points(decision_table, length, axis.cost))
    if sum(point.point.error.value >= ROUNDING_ERROR for point in points) < 2:
        return
    title, name = _name_plot(decision_table, axis)
    make = partial(make_pareto_panel, decision_table, axis.cost, points, context)
    yield length_plots.PlotPlan(
        formatting.make_slug(name, context.suffix),
        "front",
        title,
        len(points),
        make,
        axis.draw_order,
        mode=decision_table.config["mode"],
    )


def _name_plot(decision_table: DecisionTable, axis: _CostAxis) -> tuple[str, str]:
    """Title of the plot, and start of its file name."""
    mode, causal = decision_table.config["mode"], decision_table.config["causal"]
    slice_text = formatting.format_slice(mode, None if mode == "decode" else causal)
    title = f"Error against {axis.title}: {slice_text}, {units.short_length(decision_table.lengths[-1])}"
    return title, formatting.make_slug("front", axis.cost, mode, formatting.format_direction(causal))


def make_pareto_panel(
    decision_table: DecisionTable, cost: CostName, points: Sequence[RankedPoint], context: length_plots.PlotContext
) -> Panel:
    """Mechanisms of a decision table as points, at its longest length, with the Pareto front."""
    axis = next(axis for axis in COST_AXES if axis.cost == cost)
    title, name = _name_plot(decision_table, axis)
    least = min(point.point.error.value for point in points if point.point.error.value >= ROUNDING_ERROR)
    floor = least * EXACT_FLOOR
    lines = tuple(_make_line(point, floor, context) for point in points)
    nulls = [decision.null_error for decision in decision_table.decisions if decision.null_error is not None]
    front = [(line.x[0], line.y[0]) for line, point in zip(lines, points, strict=True) if point.status == "front"]
    costs = [x for line in lines for part in (line.x, line.left or (), line.right or ()) for x in part]
    return Panel(
        name=formatting.make_slug(name, context.suffix),
        kind="front",
        title=title,
        config_text=context.config_text,
        caption=f"{title}.{_describe_dominated(points)}{_describe_errors(decision_table)}"
        + (" The horizontal line is the error of predicting the mean of v." if nulls else ""),
        xlabel=f"{axis.title} over {decision_table.baseline}'s",
        ylabel="error against exact attention",
        unit="error",
        lines=lines,
        ticks=_make_ticks(costs),
        level=median(nulls) if nulls else None,
        mark_type="points",
        pareto_front=tuple(find_pareto_points(front, higher_is_better=False)),
        alt=f"{title}, for {formatting.join_words(line.label for line in lines)}.",
    )


def _describe_errors(decision_table: DecisionTable) -> str:
    """The conditions under which the errors of a plot were measured."""
    conditions = "; ".join(dict.fromkeys(d.error_on for d in decision_table.decisions if d.error_on))
    return f" Errors: {conditions}." if conditions else ""


def _make_line(ranked_point: RankedPoint, floor: float, context: length_plots.PlotContext) -> Line:
    """A point with its intervals; exact mechanisms are drawn at the floor and labeled."""
    point, line_style = (
        ranked_point.point,
        context.line_styles.get(ranked_point.point.label, LineStyle(FAINT, "o", "-", False)),
    )
    exact = point.error.value < ROUNDING_ERROR
    line_style = (
        LineStyle(FAINT, line_style.marker, line_style.dashes, True)
        if ranked_point.status == "dominated"
        else line_style
    )
    error = Estimate(floor) if exact else point.error
    error = error if error.low is None else error._replace(low=max(error.low, floor))
    return make_point(point.label, line_style, point.cost, error, "exact" if exact else "")


def _make_ticks(costs: Sequence[float]) -> dict[float, str]:
    """Round ticks between the limits, and 1, the position of the baseline."""
    limits = compute_log_limits(costs, 1.0)
    return dict.fromkeys(limits, "") | make_y_ticks("ratio", *limits) | {1.0: units.ratio(1.0)}


def _describe_dominated(points: Sequence[RankedPoint]) -> str:
    """Dominated mechanisms, and pairs without a significant difference."""
    text = ""
    dominated = [point for point in points if point.status == "dominated"]
    if dominated:
        names = formatting.join_words(f"{point.point.label} (by {point.beaten_by[0]})" for point in dominated)
        text += f" Dominated: {names}."
    unclear = [point for point in points if point.status == "unclear"]
    if unclear:
        pairs = (f"{point.point.label} from {point.beaten_by[0]}" for point in unclear)
        text += f" Not significantly different: {formatting.join_words(pairs)}."
    return text
