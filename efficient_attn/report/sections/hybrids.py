"""Hybrids: what a trained model loses and saves with a mechanism in some of its layers, by the rule that chose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ... import units
from ...results.section import Section
from ...results.stats import Estimate
from .. import formatting, select
from ..drawing.axes import compute_log_limits, make_y_ticks
from ..drawing.figures import PlotContext
from ..drawing.panel_data import Line, Panel, make_point
from ..drawing.style import COLOURS, DASH_PATTERNS, MARKERS, LineStyle
from ..gather import Frame
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_value
from .section_blocks import Chapter, SectionBlock, SectionData, make_blocks

INTRO = (
    "A mechanism replaces the attention of some layers of a trained model, without further training; the others keep "
    "their own. Perplexities are ratios to the unmodified model's on the same tokens. 'greedy': the layer is added "
    "that raises the loss least, with those already replaced, as long as perplexity stays within the limit on the "
    "segments of the choice. 'linear': layers are taken by their effects alone, whose sum has to stay within the "
    "limit. 'spaced' and 'ends': as many layers as the greedy rule leaves keep their own attention, at equal "
    "distances, or the first and the last. 'uniform': the mechanism in all layers, with more keys, and as many "
    "query-key pairs as the greedy choice. 'everywhere': the mechanism in all layers. 'Predicted' is the sum of single "
    "effects on the segments of the choice. Speedups are over the unmodified model: of a pass with the logits of all "
    "positions, and of a step after the segment; peak memory is that of reading a prompt as generation does. Brackets: "
    "95% intervals over segments, paired with the unmodified model."
)
RULES = ("greedy", "linear", "spaced", "ends", "uniform", "everywhere")  # in the order of tables
MOST_TICKS = 10
ENDS = ("_low", "_high")  # of intervals


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter on mechanisms in some layers of a trained model."""
    rows = section_data.rows
    rows = rows[(rows["task"] == section.task) & (rows["status"] == "ok")]
    return Chapter(section.title, INTRO, make_blocks(rows, section_data, _fill_block))


def _fill_block(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    model = setting.rows["inputs"].str.split(":").str[:2].str.join(":")
    for (inputs, variant), piece in setting.rows.groupby([model, "variant"], sort=True):
        names = (inputs, variant)
        if "hybrid.rule" in piece:
            for length, rows in piece[piece["hybrid.rule"].notna()].groupby("seq_len", sort=True):
                title = f"{formatting.format_inputs(inputs, True, length)}, {variant}"
                lines = _list_choices(rows)
                block.sentences += _describe_best(lines, title)
                block.tables.append(_make_rule_table(lines, rows, title))
                picture = _make_time_panel(lines, title)
                block.pictures += context.name_parts(picture, "hybrid", "rules", *names, length)
        steps = piece[piece["hybrid.step"].notna()].sort_values("hybrid.step")
        for length, rows in steps.groupby("seq_len", sort=True):
            title = f"{formatting.format_inputs(inputs, True, length)}, {variant}"
            block.tables.append(_make_step_table(rows, title))
            block.pictures += context.name_parts(_make_step_panel(rows, title), "choice", "choice", *names, length)


def _list_choices(rows: Frame) -> list[dict[str, Any]]:
    """A row per rule and limit, in the order of tables, with its name and intervals."""
    lines: list[dict[str, Any]] = []
    for row in rows.to_dict("records"):
        rule, limit = str(row["hybrid.rule"]), row["hybrid.limit"]
        line: dict[str, Any] = {str(name): value for name, value in row.items()}
        line["limit"] = float(limit) if units.is_present(limit) else None
        line["name"] = rule if line["limit"] is None else f"{rule} {_format_limit(line['limit'])}"
        for name in ("perplexity", "speedup", "step_speedup"):
            low, high = (float(v) if units.is_present(v := row[f"hybrid.{name}{end}"]) else None for end in ENDS)
            line[name] = Estimate(float(row[f"hybrid.{name}"]), low, high)
        lines.append(line)
    return sorted(lines, key=lambda line: (line["limit"] or 1.0, RULES.index(line["hybrid.rule"])))


def _format_limit(limit: float) -> str:
    return f"{100 * limit:g}%"


def _describe_best(lines: Sequence[Mapping[str, Any]], title: str) -> list[str]:
    """For each limit, the fastest choice that kept it on the verified segments."""
    sentences = []
    for limit in sorted({line["limit"] for line in lines if line["limit"] is not None}):
        within = [line for line in lines if line["perplexity"].value <= 1 + limit]
        start = f"{title}: within {_format_limit(limit)} of the unmodified model's perplexity"
        if not within:
            sentences.append(f"{start}: no choice.")
            continue
        best = max(within, key=lambda line: line["speedup"].value)
        speedup, perplexity = units.ratio(*best["speedup"]), _format_perplexity(best["perplexity"])
        sentences.append(f"{start}, '{best['name']}' is the fastest: speedup {speedup}, perplexity {perplexity}.")
    return sentences


def _make_rule_table(lines: Sequence[Mapping[str, Any]], rows: Frame, title: str) -> ReportTable:
    body = [_list_rule_cells(line) for line in lines]
    own_rows = rows[rows["hybrid.own_peak_bytes"].notna()] if "hybrid.own_peak_bytes" in rows else rows[:0]
    for row in own_rows.to_dict("records")[:1]:
        cells = [ReportCell(units.EMPTY)] * (len(RULE_HEADINGS) - 3)
        sizes = [show_value(row[name], "bytes") for name in ("hybrid.own_state_bytes", "hybrid.own_peak_bytes")]
        body.insert(0, [ReportCell("unmodified", mark="base"), *cells, *sizes])
    return drop_empty_columns(ReportTable(title, RULE_HEADINGS, body, wrapped=RULE_HEADINGS[1:2]))


RULE_HEADINGS = (
    "Rule",
    "Own attention in layers",
    "Mean pairs a query",
    "Predicted",
    "Segments of the choice",
    "Perplexity, over its own",
    "Speedup of a pass",
    "Speedup of a step",
    "States",
    "Peak memory",
)


def _list_rule_cells(line: Mapping[str, Any]) -> list[ReportCell]:
    layers = f"{line['hybrid.own']} ({int(line['hybrid.own_layers'])})" if line["hybrid.own_layers"] else "none"
    subtext = str(line["hybrid.mechanism"]) if line["hybrid.rule"] == "uniform" else ""
    perplexities = (line.get("hybrid.predicted"), line.get("hybrid.at_choice"))
    return [
        ReportCell(line["name"], subtext=subtext),
        ReportCell(layers, float(line["hybrid.own_layers"])),
        show_value(line["pairs"] / line["seq_len"], "number"),
        *(_show_perplexity(value) for value in perplexities),
        ReportCell(_format_perplexity(line["perplexity"]), line["perplexity"].value),
        *(ReportCell(units.ratio(*line[name]), line[name].value) for name in ("speedup", "step_speedup")),
        show_value(line["state_bytes"], "bytes"),
        show_value(line["peak_memory_bytes"], "bytes"),
    ]


def _show_perplexity(value: Any) -> ReportCell:
    return (
        ReportCell(_format_perplexity(Estimate(value)), value) if units.is_present(value) else ReportCell(units.EMPTY)
    )


def _format_perplexity(estimate: Estimate) -> str:
    """A ratio near 1 with three decimals."""
    value, low, high = estimate
    interval = "" if low is None else f" ({low:.3f}{units.INTERVAL_DASH}{high:.3f})"
    return f"{value:.3f}x{interval}"


def _make_step_table(rows: Frame, title: str) -> ReportTable:
    """The layers in the order in which the greedy rule adds them."""
    body = [
        [
            ReportCell(str(int(row["hybrid.step"]) + 1), float(row["hybrid.step"])),
            ReportCell(str(int(row["hybrid.layer"])), float(row["hybrid.layer"])),
            *(_show_perplexity(row[f"hybrid.{name}"]) for name in ("alone", "perplexity", "predicted")),
        ]
        for row in rows.to_dict("records")
    ]
    head = ("Replaced layers", "Added layer", "Perplexity with it alone", "With all so far", "Predicted")
    return ReportTable(f"Order of the greedy rule, {title}", head, body, folded=True)


def _make_step_panel(rows: Frame, title: str) -> Panel:
    counts = [float(step) + 1 for step in rows["hybrid.step"]]
    columns = {"measured": "hybrid.perplexity", "sum of single effects": "hybrid.predicted"}
    lines = []
    for (name, column), colour, marker, dashes in zip(columns.items(), COLOURS, MARKERS, DASH_PATTERNS, strict=False):
        style = LineStyle(colour, marker, dashes, hollow=False)
        lines.append(Line(name, style, counts, [x - 1 for x in rows[column]]))
    stride = max(1, -(-len(counts) // MOST_TICKS))
    return Panel(
        title=f"Perplexity by replaced layers: {title}",
        caption="Rise of perplexity by the number of replaced layers, in the order of the greedy rule, on the segments "
        f"of the choice: {title}.",
        xlabel="replaced layers",
        ylabel="rise of perplexity over the unmodified model's",
        unit="share",
        lines=tuple(lines),
        ticks={count: f"{count:g}" for count in counts if (count - 1) % stride == 0 or count == counts[-1]},
        log_x=False,
        log_y=False,
    )


def _make_time_panel(lines: Sequence[Mapping[str, Any]], title: str) -> Panel | None:
    """Perplexity against the time of a pass, a point for each choice."""
    points, lowest = [], min((line["limit"] for line in lines if line["limit"] is not None), default=None)
    for line in lines:
        number = RULES.index(line["hybrid.rule"])
        is_first = line["limit"] in (None, lowest)
        style = LineStyle(COLOURS[number], MARKERS[number], "-", hollow=not is_first)
        speedup, perplexity = line["speedup"], line["perplexity"]
        time = Estimate(1 / speedup.value, *(end and 1 / end for end in (speedup.high, speedup.low)))
        rise = Estimate(perplexity.value - 1, *(end and end - 1 for end in perplexity[1:]))
        points.append(make_point(line["name"], style, time, rise))
    if len(points) < 2:
        return None
    limits = compute_log_limits(x for point in points for x in point.list_x())
    return Panel(
        title=f"Perplexity against time: {title}",
        caption=f"Rise of perplexity against the time of a pass, by rule: {title}; bars: 95% intervals over segments.",
        xlabel="time of a pass over the unmodified model's",
        ylabel="rise of perplexity over the unmodified model's",
        unit="share",
        lines=tuple(points),
        ticks={**dict.fromkeys(limits, ""), **make_y_ticks("ratio", *limits)},
        mark_type="points",
        log_y=False,
    )
