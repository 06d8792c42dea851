"""Decoding: time and state of a step after a context, by key-value heads, and by batch size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ... import units
from ...results.section import Section
from .. import formatting, select, tables
from ..drawing.figures import PlotContext
from ..drawing.length_plots import GROWTH_NOTE, MEDIAN_CAPTION, SPEEDUP, LengthPlot, make_length_plots
from ..gather import Frame
from ..tables import ReportCell, ReportTable
from .section_blocks import Chapter, SectionBlock, SectionData, explain_columns, find_headline_slices, make_blocks

INTRO = (
    "One step adds a position after a context; the state is what a mechanism stores between steps. An exponent is "
    "'unclear' if its interval is wider than 0.5."
)

TRAFFIC_HEADINGS = ("Bytes a token", "Of the bandwidth")
TRAFFIC_EXPLANATION = (
    "'Bytes a token' is what any implementation must read and write for one step of one sequence; 'of the bandwidth' "
    "is the achieved bandwidth over the machine's read bandwidth of the named cache, or else of memory. It exceeds "
    "100% of memory if the state was in a cache."
)
CAPACITY_HEADING = "Longest context"


STEP_PLOT = LengthPlot("decode", "latency_ms", "time", "Time a step", "time a step", MEDIAN_CAPTION)
_STATE_CAPTION = f"State between steps{GROWTH_NOTE}"
STATE_PLOT = LengthPlot("state", "state_bytes", "bytes", "State", "state", _STATE_CAPTION, rank=2)


def make_chapter(section: Section, section_data: SectionData) -> Chapter:
    """Tables of decode steps, followed by comparisons of batch sizes."""
    rows = select.filter_timed(select.filter_task(section_data.rows, section.task))
    rows = rows[rows["mode"] == "decode"]
    blocks = make_blocks(rows, section_data, _fill_block)
    blocks += [SectionBlock(title, tables=[table]) for title, table in _make_batch_tables(rows, section_data.cpus)]
    intro = INTRO + explain_columns(blocks, [*tables.COLUMN_EXPLANATIONS, (TRAFFIC_HEADINGS, TRAFFIC_EXPLANATION)])
    return Chapter(section.title, intro, blocks)


def _fill_block(block: SectionBlock, setting: select.SettingRows, context: PlotContext) -> None:
    for piece, top in find_headline_slices(setting):
        block.add_speedup_sentences(setting, piece, top)
        tables_of_slice = (_make_step_table(setting, piece, top), _make_heads_table(setting, top))
        block.tables += [table for table in tables_of_slice if table]
    block.pictures += make_length_plots(setting, (STEP_PLOT, SPEEDUP, STATE_PLOT), context)


def _make_step_table(setting: select.SettingRows, piece: select.Slice, top: Frame) -> ReportTable:
    budgets = top["memory_budget_bytes"].dropna().unique()
    longest = f"{CAPACITY_HEADING} in {units.budget(*budgets)}" if len(budgets) == 1 else CAPACITY_HEADING
    columns: tables.CostColumns = {
        "Time a step": lambda row, _: tables.show_time(row),
        "Tokens a second": lambda row, _: tables.show_rate(row["tokens_per_s"]),
        tables.ERROR_HEADING: lambda row, _: tables.show_error(row),
        "State": lambda row, _: tables.show_value(row["state_bytes"], "bytes"),
        longest: lambda row, _: _show_capacity(row, with_budget=len(budgets) > 1),
        TRAFFIC_HEADINGS[0]: lambda row, _: _show_traffic(row),
        TRAFFIC_HEADINGS[1]: lambda row, _: _show_bandwidth(row),
        "Time exponent": lambda _, arrays: tables.show_growth(arrays, "latency_ms"),
        "State exponent": lambda _, arrays: tables.show_growth(arrays, "state_bytes"),
    }
    caption = f"Decoding after a context of {tables.format_table_length(top)}"
    return tables.make_cost_table(setting, piece, top, caption, columns)


def _show_traffic(row: dict[str, Any]) -> ReportCell:
    has_bytes = units.is_present(row["bytes_moved"]) and units.is_present(row["batch"])
    return tables.show_value(row["bytes_moved"] / row["batch"] if has_bytes else None, "bytes")


def _show_bandwidth(row: dict[str, Any]) -> ReportCell:
    share = row["bandwidth_share"]
    if not units.is_present(share):
        return ReportCell(units.EMPTY)
    cache = f" of {row['read_from']}" if row["read_from"] not in (None, "memory") else ""
    return ReportCell(f"{units.number(100 * share)}%{cache}", share)


def _show_capacity(row: dict[str, Any], *, with_budget: bool) -> ReportCell:
    """The longest context that fits the memory budget; with the budget if a table has several."""
    budget, longest = row["memory_budget_bytes"], row["longest_context"]
    if not units.is_present(budget):
        return ReportCell(units.EMPTY)
    suffix = f" in {units.budget(budget)}" if with_budget else ""
    if not units.is_present(longest):
        return ReportCell(f"any{suffix}", float("inf"))
    return ReportCell(f"{longest:,}{suffix}", longest)


def _make_heads_table(setting: select.SettingRows, top: Frame) -> ReportTable | None:
    """Steps of variants that were measured with several numbers of key-value heads; None if there are none."""
    cells_by_name: dict[str, dict[int, ReportCell]] = {}
    for row in tables.list_row_values(top):
        if units.is_present(row["kv_heads"]):
            heads = int(row["kv_heads"])
            name = row["label"].replace(f" (kv_heads={heads})", "")
            cells_by_name.setdefault(name, {})[heads] = _show_time_and_speedup(row)
    several = {name: cells for name, cells in cells_by_name.items() if len(cells) > 1}
    counts = sorted({heads for cells in several.values() for heads in cells}, reverse=True)
    empty = ReportCell(units.EMPTY)
    body = [[ReportCell(name), *(cells.get(heads, empty) for heads in counts)] for name, cells in several.items()]
    caption = f"A step by key-value heads, after a context of {tables.format_table_length(top)}"
    caption += f", with its speedup over {setting.baseline}" if top["speedup"].notna().any() else ""
    head = ("Variant", *(formatting.format_count(heads, "key-value head") for heads in counts))
    return ReportTable(caption, head, body) if body else None


def _show_time_and_speedup(row: dict[str, Any]) -> ReportCell:
    time, speedup = units.duration(row["latency_ms"]), tables.show_speedup(row)
    return speedup._replace(text=f"{time}, {speedup.text}" if speedup.text != units.EMPTY else time)


def _make_batch_tables(rows: Frame, cpus: dict[str, str]) -> Iterator[tuple[str, ReportTable]]:
    """Yield a title and a table of tokens per second by batch size, for each setting with several."""
    setting = [name for name in select.SETTING_COLUMNS if name != "batch"]
    for values, part in rows.groupby([*setting, "causal"], dropna=False, sort=False):
        if table := _make_batch_table(part[part["tokens_per_s"].notna()]):
            yield formatting.format_setting(dict(zip(setting, values, strict=False)), cpus), table


def _make_batch_table(rows: Frame) -> ReportTable | None:
    """Table at the context with the most batch sizes, the longest of these; None if no variant has several."""
    measured = rows.groupby("seq_len")["batch"].nunique()
    if not measured.max() > 1:
        return None
    top = rows[rows["seq_len"] == measured[measured == measured.max()].index.max()]
    top = top.sort_values(["batch", "tokens_per_s"], ascending=False, kind="stable")  # the fastest at the largest first
    latest = top.drop_duplicates(["label", "batch"], keep="last")
    rates = latest.pivot(index="label", columns="batch", values="tokens_per_s")
    rates = rates.loc[top["label"].drop_duplicates(), sorted(rates)]
    rates = rates[rates.count(axis=1) > 1]
    body = [[ReportCell(str(label)), *map(tables.show_rate, line)] for label, *line in rates.itertuples()]
    caption = f"Tokens a second by batch size, after a context of {tables.format_table_length(top)}"
    return ReportTable(caption, ("Variant", *(f"Batch {batch}" for batch in rates)), body) if body else None
