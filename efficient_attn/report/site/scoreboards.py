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
from ..sections import ability, generic, growth_exponents, swap, trained_scores
from ..sections.section_blocks import SectionData
from ..tables import ReportCell, ReportTable, drop_empty_columns
from .site_data import SiteRun

TIME_LAYOUTS = ("speed", "decoding", "effects")  # section layouts of times, which the leaderboards show
LOWER_IS_BETTER = " (lower is better)"


@dataclass(frozen=True)
class Scoreboard:
    """A table of scores. config_text: its configuration. order: describes the order of its lines."""

    run: SiteRun
    config_text: str
    table: ReportTable
    order: str = "best first"


def list_scoreboards(run: SiteRun, task: str, cpus: Mapping[str, str]) -> Iterator[Scoreboard]:
    """Yield all scoreboards of a task in a run; none if its rows are times."""
    rows = run.gathered.rows[run.gathered.rows["task"] == task]
    sections = {section.name: section for section in (*page.BUILT_IN, *run.gathered.sections)}
    task_section = next((candidate for candidate in sections.values() if candidate.task == task), None)
    if not len(rows) or (task_section is not None and task_section.layout in TIME_LAYOUTS):
        return
    rows = select.add_labels(rows)
    material = SectionData(rows, dict(cpus), {}, frozenset(run.gathered.overrides))
    trained = trained_scores.filter_trained(rows)
    if len(trained):
        # batch describes timed calls, not training
        yield from _make_scoreboards(run, material, trained.assign(batch=None), _list_trained)
    elif task_section is not None and task_section.layout in TABLE_MAKERS:
        yield from _make_scoreboards(run, material, rows[rows["status"] == "ok"], TABLE_MAKERS[task_section.layout])
    elif task_section is not None:
        yield from _list_section_tables(run, task_section, material)


_TableMaker: TypeAlias = Callable[[Frame], Iterable[ReportTable]]


def _make_scoreboards(run: SiteRun, material: SectionData, rows: Frame, make: _TableMaker) -> Iterator[Scoreboard]:
    """Yield a scoreboard per table; repeated captions get the name of the baseline."""
    settings = select.split_settings(rows)
    tables = [(setting, drop_empty_columns(table)) for setting in settings for table in make(setting.rows)]
    names = Counter(table.caption for _, table in tables)
    for setting, table in tables:
        against = f", baseline {setting.baseline}" if names[table.caption] > 1 else ""
        table = replace(table, caption=f"{table.caption}{against}")
        yield Scoreboard(run, material.describe_config(setting), table)


def _make_table(
    where: str, head: Sequence[str], lines: Sequence[tuple[float, Sequence[ReportCell]]], note: str
) -> ReportTable:
    """Make a table whose lines are sorted by value, lowest first."""
    body = [line for _, line in sorted(lines, key=lambda line: line[0])]
    return ReportTable(where, ("Mechanism", *head), body, note=note)


def _make_budget_cell(budget: tuple[int, str]) -> ReportCell:
    """The budget that a mechanism's options were fitted to, if any."""
    return ReportCell(budget[1], budget[0])


def _make_label_cell(label: str, *, base: bool) -> ReportCell:
    return ReportCell(label, mark="base" if base else "")


# -- trained tasks -------------------------------------------------------------------------------------------------


def _list_trained(rows: Frame) -> Iterator[ReportTable]:
    for test in trained_scores.list_tests(rows):
        if test.scored_results:
            yield _make_test_table(test)


def _make_test_table(test: trained_scores.LearningTest) -> ReportTable:
    lines = [_make_score_line(test, trained) for trained in test.scored_results]
    for name, find in ability.COMPUTED_SCORES:
        value = find(test)
        if value is not None:
            score = ReportCell(trained_scores.format_score(value, test.in_bits), value)
            null = [ReportCell(name, mark="null"), score, ReportCell("computed"), ReportCell(units.EMPTY)]
            lines.append((value if test.in_bits else -value, null))
    unscored = [trained.label for trained in test.results if trained.score is None]
    note = f"Without a score: {join_words(unscored)}." if unscored else ""
    head = (_format_metric(test.metric, less=test.in_bits), "Mean over", "Parameters")
    return _make_table(test.name, head, lines, " ".join(filter(None, (test.describe_ranking(), note))))


def _make_score_line(
    test: trained_scores.LearningTest, trained: trained_scores.MechanismResult
) -> tuple[float, Sequence[ReportCell]]:
    value = trained.score.value if trained.score else 0.0
    size = trained.best_attempts["parameters"].dropna()
    cells = (
        trained.show_score(),
        ReportCell(format_count(len(trained.best_attempts), "seed")),
        ReportCell(units.integer(size.max()) if len(size) else ""),
    )
    return value if test.in_bits else -value, [_make_label_cell(trained.label, base=trained.is_baseline), *cells]


def _format_metric(metric: str, *, less: bool) -> str:
    return f"{metric[:1].upper()}{metric[1:]}" + (LOWER_IS_BETTER if less else "")


# -- approximation errors ------------------------------------------------------------------------------------------


def _list_errors(rows: Frame) -> Iterator[ReportTable]:
    for piece in select.slice_fidelity(select.filter_fidelity(rows)):
        input_rows, budgets = piece.rows, select.find_budgets(piece.rows)
        lines = []
        for label, part in input_rows.groupby("label", sort=False):
            errors = part["relative_error"].tolist()
            mean, (low, high) = sum(errors) / len(errors), approximation_errors.compute_error_interval(errors)
            cells = [_make_estimate_cell(Estimate(mean, low, high)), _make_budget_cell(budgets[str(label)])]
            cells.append(ReportCell(format_count(part["layer"].nunique(), "layer")))
            lines.append((mean, [_make_label_cell(str(label), base=bool(part["is_baseline"].any())), *cells]))
        nulls = (("null: mean of v", input_rows["mean_value_error"].mean()), ("null: zero", 1.0))
        for name, value in nulls:
            if units.is_present(value):
                lines.append(
                    (
                        value,
                        [
                            ReportCell(name, mark="null"),
                            _make_estimate_cell(Estimate(value)),
                            ReportCell(units.EMPTY),
                            ReportCell(units.EMPTY),
                        ],
                    )
                )
        where = format_inputs(piece.inputs, piece.causal, piece.length)
        yield _make_table(where, (f"Relative error{LOWER_IS_BETTER}", "Budget", "Mean over"), lines, "")


def _make_estimate_cell(estimate: Estimate, format_value: Callable[[float], str] = units.number) -> ReportCell:
    ends = [format_value(end) for end in (estimate.low, estimate.high) if units.is_present(end) and end is not None]
    return ReportCell(
        format_value(estimate.value) + (f" ({units.INTERVAL_DASH.join(ends)})" if len(ends) > 1 else ""), estimate.value
    )


# -- in a trained model --------------------------------------------------------------------------------------------


def _list_swaps(rows: Frame) -> Iterator[ReportTable]:
    for (inputs, length), piece in rows.groupby(["inputs", "seq_len"], sort=True):
        where = f"{inputs}, {int(length):,} tokens"
        whole, single = piece[piece["layer"].isna()], piece[piece["layer"].notna()]
        if len(whole):
            yield _make_swap_table(whole, where)
        if len(single):
            yield _make_layer_table(single, f"{where}, one layer at a time")


def _make_swap_table(rows: Frame, where: str) -> ReportTable:
    """Sort by perplexity; for encoders, which have none, by the distance of their outputs."""
    summaries = list(swap.summarise_segments(rows))
    column, column_title = _choose_distance(rows)
    sort_column = "perplexity" if any(line["perplexity"] for line in summaries) else "divergence"
    sample_cell = ReportCell(format_count(rows["swap.segment"].nunique(), "segment"))
    lines = []
    for line in summaries:
        score = line[sort_column]
        cells = [ReportCell(units.ratio(*line["perplexity"]) if line["perplexity"] else units.EMPTY)]
        cells += [ReportCell(units.number(line[column])), ReportCell(units.ratio(*line["speedup"] or (None,)))]
        value = score.value if score else float("inf")
        lines.append(
            (
                value,
                [
                    _make_label_cell(line["label"], base=line["is_baseline"]),
                    *cells,
                    _make_budget_cell(line["budget"]),
                    sample_cell,
                ],
            )
        )
    head = (
        f"Perplexity, over the model's own{LOWER_IS_BETTER}",
        f"{column_title}{LOWER_IS_BETTER}",
        "Speedup over the model's own",
        "Budget",
        "Mean over",
    )
    return _make_table(where, head, lines, "")


def _choose_distance(rows: Frame) -> tuple[str, str]:
    first, second = swap.DIVERGENCE_COLUMNS
    decoder = first in rows and rows[first].notna().any()
    return (first, "KL per token") if decoder else (second, "Error of hidden states")


def _make_layer_table(rows: Frame, where: str) -> ReportTable:
    column, column_title = _choose_distance(rows)
    lines = []
    for label, part in rows.groupby("label", sort=False):
        layers = part.groupby("layer")[column].mean().dropna().tolist()
        if layers:
            mean = estimate_mean(layers)
            ends = mean.interval() or (None, None)
            cells = [_make_estimate_cell(Estimate(mean.value, *ends)), ReportCell(format_count(len(layers), "layer"))]
            lines.append((mean.value, [_make_label_cell(str(label), base=bool(part["is_baseline"].any())), *cells]))
    return _make_table(where, (f"{column_title}{LOWER_IS_BETTER}", "Mean over"), lines, "")


def _list_retrieval(rows: Frame) -> Iterator[ReportTable]:
    for (inputs, length), piece in rows.groupby(["inputs", "seq_len"], sort=False):
        last = piece[piece["accuracy"].notna()].drop_duplicates("label", keep="last")
        lines = []
        for row in last.to_dict("records"):
            ends = (row.get(f"retrieval.accuracy_{end}") for end in ("low", "high"))
            cells = [_make_estimate_cell(Estimate(row["accuracy"], *ends), units.percent)]
            question_count = row.get("retrieval.questions")
            asked = units.is_present(question_count)
            cells.append(ReportCell(format_count(int(question_count), "question") if asked else units.EMPTY))
            lines.append((-row["accuracy"], [_make_label_cell(row["label"], base=row["is_baseline"]), *cells]))
        if "retrieval.chance" in last and len(chance := last["retrieval.chance"].dropna()):
            value = _make_estimate_cell(Estimate(chance.iloc[0]), units.percent)
            lines.append((-chance.iloc[0], [ReportCell("chance", mark="null"), value, ReportCell("computed")]))
        if len(last):
            metric = last["metric"].dropna()
            head = (_format_metric(str(metric.iloc[0]) if len(metric) else "accuracy", less=False), "Mean over")
            yield _make_table(f"{inputs}, {int(length):,} tokens", head, lines, "")


TABLE_MAKERS: Mapping[str, _TableMaker] = {"fidelity": _list_errors, "swap": _list_swaps, "retrieval": _list_retrieval}


# -- other sections ------------------------------------------------------------------------------------------------


def _list_section_tables(run: SiteRun, section: Section, material: SectionData) -> Iterator[Scoreboard]:
    """Yield the tables of the report's section. Growth is sorted by exponent; other tables keep their order, as it is
    unknown whether higher or lower is better."""
    if section.layout == "complexity":
        for block in growth_exponents.make_chapter(section, material).blocks:
            tables = (_order_by_growth(table) for table in block.tables)
            yield from (Scoreboard(run, block.config_text, table, "slowest growth first") for table in tables)
        return
    layout = page.SECTION_MODULES.get(section.layout, generic)
    for part_text, rows in _split_ambiguous(material.rows, section.x):
        for block in layout.make_chapter(section, replace(material, rows=rows)).blocks:
            for table in block.tables:
                caption = f"{table.caption}: {part_text}" if part_text else table.caption
                yield Scoreboard(run, block.config_text, replace(table, caption=caption), "in the order of the report")


def _split_ambiguous(rows: Frame, x: str | None) -> Iterator[tuple[str, Frame]]:
    """Split rows by the columns (part, inputs) that distinguish rows of one mechanism; yields descriptions too."""
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
    column = table.head.index("Time") if "Time" in table.head else None
    if column is None:
        return table

    def sort_key(row: Sequence[ReportCell]) -> tuple[str, float]:
        value = row[column].sort
        return row[1].text, float(value) if isinstance(value, int | float) else math.inf

    return replace(table, rows=sorted(table.rows, key=sort_key))
