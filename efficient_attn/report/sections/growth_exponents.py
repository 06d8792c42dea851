"""Growth of time and memory: exponents with intervals, claimed exponents, and verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from ... import units
from ...results.section import Section
from ...results.stats import Estimate
from .. import select
from ..drawing.figures import PlotContext
from ..drawing.panel_data import Panel, make_dot_plot, make_point
from ..drawing.style import COLOURS, LineStyle
from ..gather import Frame
from ..tables import ReportCell, ReportTable, drop_empty_columns, make_sort_value, show_value
from .section_blocks import Chapter, SectionBlock, SectionData, make_blocks

INTRO = (
    "Growth of the time and memory of a call: exponents fitted in logarithms over the largest measured sizes, 1 for "
    "linear and 2 for quadratic growth. Brackets: 95% intervals, which also widen if the growth is not a power law. "
    "'Claimed' is the exponent of the source's formula over the same sizes. A layer includes projections, a mechanism "
    "does not. 'Steps': number of sequential steps. 'Weights': parameters at the smallest size, without biases. For "
    "masks of later keys, -1 is half the time."
)
VERDICT_MARKS = {"reproduced": "faster", "contradicted": "slower", "inconclusive": "unclear"}
POINT_STYLE = LineStyle(COLOURS[0], "o", "-", False)  # of all variants, as they are in separate rows
AXIS_SYMBOLS = {"length": "N", "width": "D", "heads": "heads", "causal": "mask"}


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """The chapter on growth with length and width."""
    rows = section_data.rows
    rows = rows[(rows["status"] == "ok") & (rows["task"] == section.task)]
    # lengths and widths vary within a setting
    rows = rows.assign(**dict.fromkeys(("heads", "head_dim"), pd.NA), baseline=None)
    return Chapter(section.title, INTRO, make_blocks(rows, section_data, _fill_block))


def _fill_block(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    for (part, subject), rows in setting.rows.groupby(["part", "complexity.of"], sort=False):
        block.tables.append(_make_table(rows, f"{part}: {subject}s"))
        for along, sweep in rows.groupby("complexity.along", sort=False):
            if along in ("length", "width") and len(sweep) > 1:
                panel = _make_panel(sweep, f"{part}: {subject}s in {AXIS_SYMBOLS[str(along)]}")
                block.pictures += context.name_parts(panel, "growth", "growth", part, subject, along)


def _make_table(rows: Frame, caption: str) -> ReportTable:
    head = ("Variant", "Grows", "Sizes", "Time", "Claimed", "Verdict", "Memory", "Claimed memory", "Verdict on memory")
    head += ("Steps", "Weights", "Longest call", "Ended by")
    body = [[ReportCell(str(row["variant"])), *_show_sweep(row)] for row in rows.to_dict("records")]
    return drop_empty_columns(ReportTable(caption, head, body, note=_describe_sources(rows)))


def _show_sweep(row: Mapping[Any, Any]) -> Iterator[ReportCell]:
    get = {name.removeprefix("complexity."): value for name, value in row.items()}.get
    yield ReportCell(AXIS_SYMBOLS.get(str(get("along")), str(get("along"))))
    causal = get("along") == "causal"
    yield ReportCell(units.EMPTY if causal else f"{int(get('smallest') or 0):,} to {int(get('reached') or 0):,}")
    for quantity in ("time", "memory"):
        value, low, high = (get(f"{quantity}_{end}") for end in ("exponent", "low", "high"))
        has_interval = units.is_present(low) and units.is_present(high)
        interval = f" ({low:z.2f} to {high:z.2f})" if has_interval else ""
        yield _show_exponent(value, interval)
        claim, claimed, verdict = (get(f"{quantity}_{end}") for end in ("claim", "claimed", "verdict"))
        yield _show_exponent(claimed, f": {claim}")
        yield show_value(verdict)._replace(mark=VERDICT_MARKS.get(str(verdict).partition(":")[0], ""))
    yield _show_with_claim(get("sequential"), get("sequential_claimed"))
    yield _show_with_claim(get("weights"), get("weights_claimed"))
    yield show_value(row["latency_ms"], "time")
    yield show_value(get("stopped"))


def _show_exponent(exponent: Any, suffix: str) -> ReportCell:
    if not units.is_present(exponent):
        return ReportCell(units.EMPTY)
    return ReportCell(f"{exponent:z.2f}{suffix}", make_sort_value(exponent))  # z: no negative zero


def _show_with_claim(counted: Any, claimed: Any) -> ReportCell:
    """A count, and the claimed one if it differs."""
    if not units.is_present(counted):
        return ReportCell(units.EMPTY)
    other = f" (claimed {int(claimed):,})" if units.is_present(claimed) and int(claimed) != int(counted) else ""
    return ReportCell(f"{int(counted):,}{other}", float(counted))


def _describe_sources(rows: Frame) -> str:
    sources = dict(zip(rows["variant"], rows["complexity.source"], strict=True))
    texts = [f"{variant}: {source}" for variant, source in sources.items() if units.is_present(source)]
    return f"Sources: {'; '.join(texts)}." if texts else ""


def _make_panel(rows: Frame, title: str) -> Panel:
    """Dot plot with the measured exponent of each variant, its interval, and the claimed exponent."""
    columns = [f"complexity.time_{end}" for end in ("exponent", "low", "high", "claimed")]
    values = rows[::-1].reindex(columns=["variant", *columns]).itertuples(index=False)  # the first on top
    lines = []
    for y, (name, *row) in enumerate(values):
        exponent, low, high, claimed = (float(x) if units.is_present(x) else None for x in row)
        estimate = Estimate(math.nan if exponent is None else exponent, low, high)
        point = make_point(str(name), POINT_STYLE, estimate, Estimate(float(y)))
        lines.append(replace(point, reference=claimed))
    has_claims = any(line.reference is not None for line in lines)
    return make_dot_plot(
        lines,
        "number",
        log_x=False,
        title=f"Exponent of time: {title}",
        caption=f"Exponent of time, measured with its 95% interval, and claimed: {title}.",
        xlabel="Exponent of time" + ("; open squares: claimed" if has_claims else ""),
    )
