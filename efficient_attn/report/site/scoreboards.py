"""Scoreboards of a task: one table per run and configuration, best first, with the baseline marked.

The values are those of the run pages, from the same functions, one score per line.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ... import units
from ...results.section import Section
from ...results.stats import Estimate, estimate_mean
from .. import approximation_errors, page, select
from ..formatting import format_count, format_inputs, join_words
from ..gather import Frame
from ..sections import generic, growth_exponents, swap, trained_scores
from ..sections.section_blocks import SectionData
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_label, show_value
from .site_data import SiteRun

TIME_LAYOUTS = ("speed", "decoding", "effects")  # section layouts of times, which the leaderboards show
LOWER_IS_BETTER = " (lower is better)"


@dataclass(frozen=True)
class Scoreboard:
    """A table of scores. order: description of how its lines are sorted."""

    run: SiteRun
    config_text: str
    table: ReportTable
    order: str = "best first"


def list_scoreboards(run: SiteRun, task: str, cpus: Mapping[str, str]) -> Iterator[Scoreboard]:
    """Yield all scoreboards of a task in a run; none if its rows are times."""
    rows = run.gathered.rows[run.gathered.rows["task"] == task]
    sections = {section.name: section for section in (*page.BUILT_IN, *run.gathered.sections)}
    section = next((section for section in sections.values() if section.task == task), None)
    if not len(rows) or (section is not None and section.layout in TIME_LAYOUTS):
        return
    rows = select.add_labels(rows)
    data = SectionData(rows, dict(cpus), {}, run.gathered.run_notes)
    trained = trained_scores.filter_trained(rows)
    if len(trained):
        # batch describes timed calls, not training
        yield from _make_scoreboards(run, data, trained.assign(batch=None), _list_trained)
    elif section is not None and section.layout in TABLE_MAKERS:
        yield from _make_scoreboards(run, data, rows[rows["status"] == "ok"], TABLE_MAKERS[section.layout])
    elif section is not None:
        yield from _list_section_tables(run, section, data)


_TableMaker: TypeAlias = Callable[[Frame], Iterable[ReportTable]]
_Line: TypeAlias = tuple[float, Sequence[ReportCell]]  # a value to sort by, and the cells


def _make_scoreboards(run: SiteRun, data: SectionData, rows: Frame, make: _TableMaker) -> Iterator[Scoreboard]:
    """Yield a scoreboard per table; the baseline's name is added to repeated captions."""
    settings = select.split_settings(rows)
    tables = [(setting, drop_empty_columns(table)) for setting in settings for table in make(setting.rows)]
    counts = Counter(table.caption for _, table in tables)
    for setting, table in tables:
        suffix = f", baseline {setting.baseline}" if counts[table.caption] > 1 else ""
        table = replace(table, caption=f"{table.caption}{suffix}")
        yield Scoreboard(run, data.describe_config(setting.key, setting.rows["run_id"]), table)


def _make_table(caption: str, head: Sequence[str], lines: Iterable[_Line], note: str = "") -> ReportTable:
    """Make a table whose lines are sorted by value, lowest first."""
    body = [cells for _, cells in sorted(lines, key=lambda line: line[0])]
    return ReportTable(caption, ("Mechanism", *head), body, note=note)


# -- trained tasks -------------------------------------------------------------------------------------------------


def _list_trained(rows: Frame) -> Iterator[ReportTable]:
    return (_make_test_table(test) for test in trained_scores.list_tests(rows) if test.scored_results)


def _make_test_table(test: trained_scores.LearningTest) -> ReportTable:
    sign = 1 if test.in_bits else -1
    lines: list[_Line] = []
    for result in test.scored_results:
        sizes = result.best_attempts["parameters"].dropna()
        seeds = ReportCell(format_count(len(result.best_attempts), "seed"))
        parameters = ReportCell(units.integer(sizes.max()) if len(sizes) else "")
        cells = [show_label(result.label, is_baseline=result.is_baseline), result.show_score(), seeds, parameters]
        lines.append((sign * result.score.value if result.score else 0.0, cells))
    for name, value in test.computed_scores.items():
        score_cell = show_value(value, test.unit)
        cells = [ReportCell(name, mark="null"), score_cell, ReportCell("computed"), ReportCell(units.EMPTY)]
        lines.append((sign * value, cells))
    unscored = [result.label for result in test.results if result.score is None]
    note = f"Without a score: {join_words(unscored)}." if unscored else ""
    head = (_capitalise(test.metric) + (LOWER_IS_BETTER if test.in_bits else ""), "Mean over", "Parameters")
    return _make_table(test.name, head, lines, " ".join(filter(None, (test.describe_ranking(), note))))


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


# -- approximation errors ------------------------------------------------------------------------------------------


def _list_errors(rows: Frame) -> Iterator[ReportTable]:
    for piece in select.slice_fidelity(select.filter_fidelity(rows)):
        budgets, lines = select.find_budgets(piece.rows), list[_Line]()
        for label, part in piece.rows.groupby("label", sort=False):
            errors = part["relative_error"].tolist()
            mean, ends = sum(errors) / len(errors), approximation_errors.compute_error_interval(errors)
            rank, budget = budgets[str(label)]
            layers = ReportCell(format_count(part["layer"].nunique(), "layer"))
            estimate_cell = _make_estimate_cell(Estimate(mean, *ends))
            lines.append((mean, [_show_rows_label(part), estimate_cell, ReportCell(budget, rank), layers]))
        for name, value in (("null: mean of v", piece.rows["mean_value_error"].mean()), ("null: zero", 1.0)):
            if units.is_present(value):
                cells = [ReportCell(name, mark="null"), _make_estimate_cell(Estimate(value))]
                lines.append((value, [*cells, ReportCell(units.EMPTY), ReportCell(units.EMPTY)]))
        caption = format_inputs(piece.inputs, piece.causal, piece.length)
        yield _make_table(caption, (f"Relative error{LOWER_IS_BETTER}", "Budget", "Mean over"), lines)


def _show_rows_label(rows: Frame) -> ReportCell:
    """The cell of the label of a mechanism's rows."""
    return show_label(str(rows["label"].iloc[0]), is_baseline=bool(rows["is_baseline"].any()))


def _make_estimate_cell(estimate: Estimate, format_value: Callable[[float], str] = units.number) -> ReportCell:
    text, ends = format_value(estimate.value), (estimate.low, estimate.high)
    if all(map(units.is_present, ends)):
        text += f" ({units.INTERVAL_DASH.join(format_value(end) for end in ends if end is not None)})"
    return ReportCell(text, estimate.value)


# -- in a trained model --------------------------------------------------------------------------------------------


def _list_swaps(rows: Frame) -> Iterator[ReportTable]:
    for (inputs, length), piece in rows.groupby(["inputs", "seq_len"], sort=True):
        caption = format_inputs(inputs, piece["causal"].iloc[0], length)
        whole, single = piece[piece["layer"].isna()], piece[piece["layer"].notna()]
        if len(whole):
            yield _make_swap_table(whole, caption)
        if len(single):
            yield _make_layer_table(single, f"{caption}, one layer at a time")


def _make_swap_table(rows: Frame, caption: str) -> ReportTable:
    """Make a table sorted by perplexity; for encoders, which have none, by the distance of their outputs."""
    summaries = list(swap.summarise_segments(rows))
    column, column_title = _choose_distance(rows)
    sort_column = "perplexity" if any(summary["perplexity"] for summary in summaries) else "divergence"
    sample_cell = ReportCell(format_count(rows["swap.segment"].nunique(), "segment"))
    lines: list[_Line] = []
    for summary in summaries:
        score, (rank, budget) = summary[sort_column], summary["budget"]
        perplexity, speedup = (ReportCell(units.ratio(*summary[n] or (None,))) for n in ("perplexity", "speedup"))
        cells = [show_label(summary["label"], is_baseline=summary["is_baseline"]), perplexity]
        cells += [ReportCell(units.number(summary[column])), speedup, ReportCell(budget, rank), sample_cell]
        lines.append((score.value if score else math.inf, cells))
    head = (f"Perplexity, over the model's own{LOWER_IS_BETTER}", f"{column_title}{LOWER_IS_BETTER}")
    return _make_table(caption, (*head, "Speedup over the model's own", "Budget", "Mean over"), lines)


def _choose_distance(rows: Frame) -> tuple[str, str]:
    first, second = swap.DIVERGENCE_COLUMNS
    decoder = first in rows and rows[first].notna().any()
    return (first, "KL per token") if decoder else (second, "Error of hidden states")


def _make_layer_table(rows: Frame, caption: str) -> ReportTable:
    column, column_title = _choose_distance(rows)
    lines: list[_Line] = []
    for _, part in rows.groupby("label", sort=False):
        layers = part.groupby("layer")[column].mean().dropna().tolist()
        if layers:
            mean = estimate_mean(layers)
            estimate_cell = _make_estimate_cell(Estimate(mean.value, *(mean.interval() or (None, None))))
            count_cell = ReportCell(format_count(len(layers), "layer"))
            lines.append((mean.value, [_show_rows_label(part), estimate_cell, count_cell]))
    return _make_table(caption, (f"{column_title}{LOWER_IS_BETTER}", "Mean over"), lines)


def _list_retrieval(rows: Frame) -> Iterator[ReportTable]:
    for (inputs, length), piece in rows.groupby(["inputs", "seq_len"], sort=False):
        last = piece[piece["accuracy"].notna()].drop_duplicates("label", keep="last")
        lines: list[_Line] = []
        for row in last.to_dict("records"):
            ends = (row.get(f"retrieval.accuracy_{end}") for end in ("low", "high"))
            count = row.get("retrieval.questions")
            cells = [show_label(str(row["label"]), is_baseline=row["is_baseline"])]
            cells += [_make_estimate_cell(Estimate(row["accuracy"], *ends), units.percent)]
            cells += [ReportCell(format_count(int(count), "question") if units.is_present(count) else units.EMPTY)]
            lines.append((-row["accuracy"], cells))
        if "retrieval.chance" in last and len(chances := last["retrieval.chance"].dropna()):
            chance = float(chances.iloc[0])
            cells = [ReportCell("chance", mark="null"), _make_estimate_cell(Estimate(chance), units.percent)]
            lines.append((-chance, [*cells, ReportCell("computed")]))
        if len(last):
            metric = next(iter(last["metric"].dropna()), "accuracy")
            yield _make_table(f"{inputs}, {int(length):,} tokens", (_capitalise(str(metric)), "Mean over"), lines)


TABLE_MAKERS: Mapping[str, _TableMaker] = {"fidelity": _list_errors, "swap": _list_swaps, "retrieval": _list_retrieval}


# -- other sections ------------------------------------------------------------------------------------------------


def _list_section_tables(run: SiteRun, section: Section, data: SectionData) -> Iterator[Scoreboard]:
    """Yield the tables of the report's section. Growth is sorted by exponent; other tables keep their order, as it is
    unknown whether higher or lower is better."""
    if section.layout == "complexity":
        for block in growth_exponents.make_chapter(section, data).blocks:
            tables = (_order_by_growth(table) for table in block.tables)
            yield from (Scoreboard(run, block.config_text, table, "slowest growth first") for table in tables)
        return
    layout = page.SECTION_MODULES.get(section.layout, generic)
    for part_text, rows in _split_ambiguous(data.rows, section.x):
        for block in layout.make_chapter(section, replace(data, rows=rows)).blocks:
            for table in block.tables:
                caption = f"{table.caption}: {part_text}" if part_text else table.caption
                yield Scoreboard(run, block.config_text, replace(table, caption=caption), "in the order of the report")


def _split_ambiguous(rows: Frame, x: str | None) -> Iterator[tuple[str, Frame]]:
    """Split rows by part and inputs, where a mechanism has several rows otherwise; yield each with a description."""
    key_columns = ["label", x] if x in rows else ["label"]
    columns: list[str] = []
    for name in ("part", "inputs"):
        if rows.duplicated([*key_columns, *columns]).any() and rows[name].nunique() > 1:
            columns.append(name)
    if not columns:
        yield "", rows
        return
    for values, part_rows in rows.groupby(columns, sort=False, dropna=False):
        yield ", ".join(str(value) for value in values if units.is_present(value)), part_rows


def _order_by_growth(table: ReportTable) -> ReportTable:
    if "Time" not in table.head:
        return table
    column = table.head.index("Time")

    def sort_key(row: Sequence[ReportCell]) -> tuple[str, float]:
        value = row[column].sort
        return row[1].text, math.inf if value is None else value

    return replace(table, rows=sorted(table.rows, key=sort_key))
