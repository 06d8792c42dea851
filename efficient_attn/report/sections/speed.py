"""Speed and memory: a table at one length, and plots of time, speedup and memory over all lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ...results.section import Section
from .. import formatting, select, tables
from ..answers.decision_table import DecisionTable
from ..drawing import length_plots
from ..gather import Frame
from ..tables import ReportTable
from .decisions import make_speedup_heatmap
from .section_blocks import Chapter, SectionBlock, SectionData, explain_columns, find_headline_slices, make_blocks

INTRO = (
    "Times are medians over rounds in which all variants of a group are interleaved; brackets are 95% intervals. "
    "Exponents describe the growth with length N, fitted over all measured lengths by least squares on logarithms: 1 "
    "is linear, 2 quadratic; 'unclear': the interval is wider than 0.5."
)
PREFILL_EXPLANATION = "Prefill processes a whole prompt in one call and creates a decode state."
TIME_PLOT = length_plots.LengthPlot(
    "time", "latency_ms", "time", "Time", "time a call", length_plots.MEDIAN_CAPTION, draw_order=1
)
_MEMORY_CAPTION = f"Output included, inputs not{length_plots.GROWTH_NOTE}"
MEMORY_PLOT = length_plots.LengthPlot(
    "memory", "peak_memory_bytes", "bytes", "Peak memory", "peak memory", _MEMORY_CAPTION, draw_order=2
)


MOST_SETTINGS = 100  # with tables
DETAILS_TITLE, DETAILS_ANCHOR = "All lengths, exponents, pairs and backends", "details"


def make_chapter(section: Section, material: SectionData) -> Chapter:
    """Plots of all timed rows except decode steps."""
    return Chapter(section.title, "", make_blocks(_select_rows(section, material), material, _fill_plots))


def make_details(section: Section, material: SectionData, decision_tables: Sequence[DecisionTable]) -> Chapter:
    """Collapsed tables of the same rows: all speedups, and costs at one length."""
    fill = partial(
        _fill_tables,
        {select.make_config_key(decision_table.config): decision_table for decision_table in decision_tables},
    )
    rows = _select_rows(section, material)
    blocks = make_blocks(rows, material, fill, most=MOST_SETTINGS)
    omitted = rows.groupby(select.SETTING_COLUMNS, dropna=False, sort=False).ngroups - MOST_SETTINGS
    if omitted > 0 and blocks:
        blocks[
            -1
        ].note = f"{formatting.format_count(omitted, 'more setting')} not shown here: all rows are in rows.csv."
    return Chapter(
        DETAILS_TITLE, INTRO + explain_columns(blocks, tables.COLUMN_EXPLANATIONS), blocks, DETAILS_ANCHOR, section.task
    )


def _select_rows(section: Section, material: SectionData) -> Frame:
    rows = select.filter_timed(select.filter_task(material.rows, section.task))
    return rows[rows["mode"] != "decode"]


def _fill_plots(block: SectionBlock, setting: select.SettingRows, scene: length_plots.Scene) -> None:
    block.plans += length_plots.plan_length_plots(setting, (length_plots.SPEEDUP, MEMORY_PLOT, TIME_PLOT), scene)


def _fill_tables(
    tables_by_key: Mapping[str, DecisionTable],
    block: SectionBlock,
    setting: select.SettingRows,
    scene: length_plots.Scene,
) -> None:
    for piece, top in find_headline_slices(setting):
        block.add_speedup_sentences(setting, piece, top)
        block.tables.append(_make_table(setting, piece, top))
        decision_table = tables_by_key.get(
            select.make_config_key(setting.key | {"mode": piece.mode, "causal": piece.causal})
        )
        where = formatting.format_slice(piece.mode, piece.causal)
        heatmap = (
            make_speedup_heatmap(decision_table, f"Speedup over {setting.baseline} at all lengths: {where}")
            if decision_table
            else None
        )
        block.tables += [heatmap] if heatmap else []


def _make_table(setting: select.SettingRows, piece: select.Slice, top: Frame) -> ReportTable:
    """Costs of each variant at the length of `select.find_headline_rows`, and their growth."""
    groups, prefill = select.split_variants(piece.rows), piece.mode == "prefill"
    backends_by_label = tables.find_backends(piece.rows)
    rows, row_values = [], tables.list_row_values(top)
    for row in row_values:
        arrays = groups[row["label"]]
        cells = [tables.show_name(row), tables.show_speedup(row), tables.show_time(row)]
        cells += [tables.show_rate(row["tokens_per_s"] if prefill else None), tables.show_error(row)]
        cells += [tables.show_crossover(row, arrays), tables.show_growth(arrays, "latency_ms")]
        cells += [tables.show_size(row["peak_memory_bytes"]), tables.show_growth(arrays, "peak_memory_bytes")]
        rows.append([*cells, *tables.show_pairs(row, int(row["seq_len"])), tables.show_backend(row, backends_by_label)])
    head = ("Variant", f"Speedup over {setting.baseline}", "Time", "Tokens a second", tables.ERROR_HEADING)
    head = (
        *head,
        "Faster from",
        "Time exponent",
        "Peak memory",
        "Memory exponent",
        *tables.PAIRS_HEADINGS,
        tables.BACKEND_HEADING,
    )
    where = formatting.format_slice(piece.mode, piece.causal)
    notes = (
        PREFILL_EXPLANATION if prefill else "",
        tables.describe_error_source(row_values),
        tables.describe_verification_lengths(row_values),
    )
    caption = f"{where[:1].upper()}{where[1:]} at length {tables.format_table_length(top)}"
    note = tables.join_sentences(*notes, tables.list_absent_variants(piece.rows, top))
    return tables.drop_empty_columns(
        ReportTable(caption, head, rows, 1, note, wrapped=(tables.BACKEND_HEADING,), mode=piece.mode)
    )
