"""Speed and memory: a table at one length, and plots of time, speedup and memory over all lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ...results.section import Section
from .. import formatting, select, tables
from ..answers.decision_table import DecisionTable
from ..drawing.figures import PlotContext
from ..drawing.length_plots import GROWTH_NOTE, MEDIAN_CAPTION, SPEEDUP, LengthPlot, make_length_plots
from ..gather import Frame
from ..tables import ReportTable
from .decisions import make_speedup_heatmap
from .section_blocks import Chapter, SectionBlock, SectionData, explain_columns, find_headline_slices, make_blocks

INTRO = (
    "Times are medians over rounds in which all variants of a group are interleaved; brackets are 95% intervals. "
    "Exponents describe the growth with length N, fitted over all measured lengths by least squares on logarithms: 1 "
    "is linear, 2 quadratic; 'unclear': the interval is wider than 0.5. Peak memory includes the output, "
    "but not the inputs; the workspace is the peak without the output and without what is saved for the backward pass."
)
PREFILL_EXPLANATION = "Prefill processes a whole prompt in one call and creates a decode state."
TIME_PLOT = LengthPlot("time", "latency_ms", "time", "Time", "time a call", MEDIAN_CAPTION, rank=1)
_MEMORY_CAPTION = f"Output included, inputs not{GROWTH_NOTE}"
MEMORY_PLOT = LengthPlot("memory", "peak_memory_bytes", "bytes", "Peak memory", "peak memory", _MEMORY_CAPTION, rank=2)


MOST_SETTINGS = 100  # with tables
DETAILS_TITLE, DETAILS_ANCHOR = "All lengths, exponents, pairs and backends", "details"


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """Plots of all timed rows except decode steps."""
    return Chapter(section.title, "", make_blocks(_select_rows(section, section_data), section_data, _fill_plots))


def make_details(section: Section, section_data: SectionData, decision_tables: Sequence[DecisionTable]) -> Chapter:
    """Collapsed tables of the same rows: all speedups, and costs at one length."""
    tables_by_key = {select.make_config_key(table.config): table for table in decision_tables}
    rows = _select_rows(section, section_data)
    blocks = make_blocks(rows, section_data, partial(_fill_tables, tables_by_key), most=MOST_SETTINGS)
    omitted = rows.groupby(select.SETTING_COLUMNS, dropna=False, sort=False).ngroups - MOST_SETTINGS
    if omitted > 0 and blocks:
        more = formatting.format_count(omitted, "more setting")
        blocks[-1].note = f"{more} not shown here: all rows are in rows.csv."
    intro = INTRO + explain_columns(blocks, tables.COLUMN_EXPLANATIONS)
    return Chapter(DETAILS_TITLE, intro, blocks, DETAILS_ANCHOR, section.task)


def _select_rows(section: Section, section_data: SectionData) -> Frame:
    rows = select.filter_timed(select.filter_task(section_data.rows, section.task))
    return rows[rows["mode"] != "decode"]


def _fill_plots(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    block.pictures += make_length_plots(setting, (SPEEDUP, MEMORY_PLOT, TIME_PLOT), context)


def _fill_tables(
    tables_by_key: Mapping[str, DecisionTable],
    block: SectionBlock,
    setting: select.SettingRows,
    context: PlotContext,
) -> None:
    for piece, top in find_headline_slices(setting):
        block.add_speedup_sentences(setting, piece, top)
        block.tables.append(_make_table(setting, piece, top))
        key = select.make_config_key(setting.key | {"mode": piece.mode, "causal": piece.causal})
        slice_text = formatting.format_slice(piece.mode, piece.causal)
        caption = f"Speedup over {setting.baseline} at all lengths: {slice_text}"
        if key in tables_by_key and (heatmap := make_speedup_heatmap(tables_by_key[key], caption)):
            block.tables.append(heatmap)


def _make_table(setting: select.SettingRows, piece: select.Slice, top: Frame) -> ReportTable:
    """Costs of each variant at the length of `select.find_headline_rows`, and their growth."""
    prefill = piece.mode == "prefill"
    columns: tables.CostColumns = {
        "Time": lambda row, _: tables.show_time(row),
        "Tokens a second": lambda row, _: tables.show_rate(row["tokens_per_s"] if prefill else None),
        tables.ERROR_HEADING: lambda row, _: tables.show_error(row),
        "Faster from": tables.show_crossover,
        "Time exponent": lambda _, arrays: tables.show_growth(arrays, "latency_ms"),
        "Peak memory": lambda row, _: tables.show_value(row["peak_memory_bytes"], "bytes"),
        "Workspace": lambda row, _: tables.show_value(row["workspace_bytes"], "bytes"),
        "Memory exponent": lambda _, arrays: tables.show_growth(arrays, "peak_memory_bytes"),
    }
    slice_text = formatting.format_slice(piece.mode, piece.causal)
    caption = f"{slice_text[:1].upper()}{slice_text[1:]} at length {tables.format_table_length(top)}"
    return tables.make_cost_table(setting, piece, top, caption, columns, PREFILL_EXPLANATION if prefill else "")
