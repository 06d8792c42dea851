"""Approximation error against cost: Pareto fronts by configuration and cost, with dominated points in grey."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

from ... import units
from .. import formatting
from ..answers.decision_table import DecisionTable
from ..answers.pareto import RankedPoint, classify_points, list_points
from ..approximation_errors import ROUNDING_ERROR
from ..drawing.axes import compute_log_limits, make_y_ticks
from ..drawing.figures import PlotContext
from ..drawing.panel_data import Line, Panel, Picture, make_point
from ..drawing.style import FAINT, LineStyles
from .model_pareto import find_pareto_points
from .section_blocks import Chapter, SectionBlock, SectionData, list_varying_columns

TITLE, ANCHOR = "Relative error against time, memory and state", "front"
MAX_TABLES = 4
INTRO = (
    "A point is a mechanism: lower cost is to the left, smaller error is below; mechanisms that equal exact attention "
    "up to rounding stand below the break of the axis. Bars are 95% intervals, of the error over layers. The line is "
    "the Pareto front, dashed where it ends at an exact mechanism. Grey points are significantly dominated by another "
    "mechanism. Points whose intervals overlap with those of a seemingly better one are not significantly different: "
    "they keep their color and are named in the caption."
)
INTERVAL_FLOOR = 0.5  # lower end of an interval that is drawn, relative to the smallest error above rounding

CostName = Literal["time", "memory", "state"]
COST_AXES: dict[CostName, str] = {"time": "time", "memory": "peak memory", "state": "decode state"}  # titles


def make_chapter(decision_tables: Sequence[DecisionTable], section_data: SectionData) -> Chapter:
    """Plots of the decision tables with most mechanisms; at least two mechanisms must be inexact."""
    blocks: dict[str, SectionBlock] = {}
    ordered = sorted(decision_tables, key=lambda table: -len(list_points(table, "time")))
    differ = bool(list_varying_columns([table.config for table in decision_tables]))
    for number, decision_table in enumerate(ordered[:MAX_TABLES], 1):
        title = formatting.format_setting(dict(decision_table.config), section_data.cpus)
        config_text = section_data.describe_config(decision_table.config, sorted(decision_table.run_ids))
        context = PlotContext(section_data.line_styles, str(number) if differ else "", config_text)
        if pictures := [x for cost in COST_AXES for x in _make_plots(decision_table, cost, context)]:
            blocks.setdefault(title, SectionBlock(title, config_text=config_text)).pictures += pictures
    return Chapter(TITLE, INTRO, list(blocks.values()), ANCHOR, "speed")


def _make_plots(decision_table: DecisionTable, cost: CostName, context: PlotContext) -> Iterator[Picture]:
    """A plot if at least two mechanisms are inexact. Decoding has state instead of memory."""
    mode, causal = decision_table.config["mode"], decision_table.config["causal"]
    if (cost == "state") != (mode == "decode") and cost != "time":
        return
    points = classify_points(list_points(decision_table, cost))
    if sum(point.point.error.value >= ROUNDING_ERROR for point in points) < 2:
        return
    panel = make_pareto_panel(decision_table, cost, points, context.line_styles)
    names, rank = ("front", cost, mode, formatting.format_direction(causal)), 0 if cost == "time" else 2
    yield from context.name_parts(panel, "front", *names, rank=rank, mode=mode)


def make_pareto_panel(
    decision_table: DecisionTable, cost: CostName, points: Sequence[RankedPoint], line_styles: LineStyles
) -> Panel:
    """Mechanisms of a decision table as points, at its longest length, with the Pareto front."""
    mode, causal = decision_table.config["mode"], decision_table.config["causal"]
    slice_text = formatting.format_slice(mode, None if mode == "decode" else causal)
    title = f"Error against {COST_AXES[cost]}: {slice_text}, {units.short_length(decision_table.lengths[-1])}"
    least = min(point.point.error.value for point in points if point.point.error.value >= ROUNDING_ERROR)
    lines = tuple(_make_line(point, least * INTERVAL_FLOOR, line_styles) for point in points)
    nulls = [decision.null_error for decision in decision_table.decisions if decision.null_error is not None]
    on_front = [point.point for point in points if point.status == "front"]
    front = [(point.cost.value, point.error.value) for point in on_front if point.error.value >= ROUNDING_ERROR]
    ends = [point.cost.value for point in on_front if point.error.value < ROUNDING_ERROR]
    limits = compute_log_limits((x for line in lines for x in line.list_x()), 1.0)
    ticks = dict.fromkeys(limits, "") | make_y_ticks("ratio", *limits) | {1.0: units.ratio(1.0)}  # 1: the baseline
    return Panel(
        title=title,
        caption=f"{title}.{_describe_dominated(points)}{_describe_errors(decision_table)}"
        + (" The horizontal line is the error of predicting the mean of v." if nulls else ""),
        level_text="mean of v" if nulls else "",
        exact_below=ROUNDING_ERROR,
        front_end=min(ends, default=None),
        xlabel=f"{COST_AXES[cost]} over {decision_table.baseline}'s",
        ylabel="error against exact attention",
        unit="error",
        lines=lines,
        ticks=ticks,
        level=median(nulls) if nulls else None,
        mark_type="points",
        pareto_front=tuple(find_pareto_points(front)),
    )


def _describe_errors(decision_table: DecisionTable) -> str:
    """The conditions under which the errors of a plot were measured."""
    conditions = "; ".join(dict.fromkeys(d.error_on for d in decision_table.decisions if d.error_on))
    return f" Errors: {conditions}." if conditions else ""


def _make_line(ranked_point: RankedPoint, floor: float, line_styles: LineStyles) -> Line:
    point = ranked_point.point
    line_style = line_styles[point.label]
    if ranked_point.status == "dominated":
        line_style = line_style._replace(colour=FAINT, hollow=True)
    error = point.error if point.error.low is None else point.error._replace(low=max(point.error.low, floor))
    return make_point(point.label, line_style, point.cost, error)


def _describe_dominated(points: Sequence[RankedPoint]) -> str:
    """Dominated mechanisms, and pairs without a significant difference."""
    dominated = [f"{p.point.label} (by {p.beaten_by[0]})" for p in points if p.status == "dominated"]
    unclear = [f"{p.point.label} from {p.beaten_by[0]}" for p in points if p.status == "unclear"]
    text = f" Dominated: {formatting.join_words(dominated)}." if dominated else ""
    return text + (f" Not significantly different: {formatting.join_words(unclear)}." if unclear else "")
