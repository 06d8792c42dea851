"""Scoreboards of a task: best first, with the baseline marked.

Qualities do not depend on the machine, the threads or the suite's batch: those of all runs are pooled, one table for
each model, length and direction, with the number of runs and the range over them. The tables of other tasks are on the
pages of their runs only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ... import units
from ...results.section import Section
from ...results.stats import Estimate, estimate_mean
from ...spec import format_label
from .. import approximation_errors, page, select
from ..formatting import format_config, format_count, format_inputs, join_words
from ..gather import Frame
from ..sections import swap, trained_scores
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_label, show_value

RUNS = "Runs"
LOWER_IS_BETTER = " (lower is better)"
# by layout, of which the first that was measured is pooled
POOLED_METRICS = {
    "fidelity": ["relative_error"],
    "swap": ["swap.loss", "swap.hidden_error"],
    "retrieval": ["accuracy"],
}
# what a quality does not depend on; batch describes timed calls, not training
POOLED_COLUMNS = ("machine", "device", "threads", "batch", "fill", "suite", "baseline")
RESULT_COLUMNS = ["label", "inputs", "causal", "seq_len", "dtype", "heads", "head_dim", "layer", "seed", "swap.segment"]


@dataclass(frozen=True)
class Scoreboard:
    """A table of scores, best first."""

    config_text: str
    table: ReportTable


def list_scoreboards(rows: Frame, task: str, sections: Iterable[Section]) -> list[Scoreboard]:
    """Return the scoreboards of a task; none if it is not known which scores are better. rows: oldest first."""
    rows = _relabel(rows[rows["task"] == task])
    by_name = {section.name: section for section in (*page.BUILT_IN, *sections)}
    layout = next((section.layout for section in by_name.values() if section.task == task), "")
    trained = trained_scores.filter_trained(rows)
    if len(trained):
        return list(_make_scoreboards(trained.assign(**dict.fromkeys(POOLED_COLUMNS[:-2])), _list_trained))
    if layout in TABLE_MAKERS:
        ok = rows[rows["status"] == "ok"]
        metric = next((name for name in POOLED_METRICS[layout] if name in ok and ok[name].notna().any()), None)
        if metric is None:
            return []
        pooled = _pool_runs(ok, metric)
        return list(_make_scoreboards(pooled, TABLE_MAKERS[layout]))
    return []


def _relabel(rows: Frame) -> Frame:
    """Rows with labels that do not name their run."""
    labels = [format_label(*pair) for pair in zip(rows["variant"], rows["backend"], strict=True)]
    return rows.assign(label=labels)


def _pool_runs(rows: Frame, metric: str) -> Frame:
    """One row per result, with the mean of a metric over runs, and ``runs``: their number, and the range over them."""
    columns = [name for name in RESULT_COLUMNS if name in rows]
    group_columns = [name for name in columns if name not in ("layer", "seed", "swap.segment")]
    group, result = (rows.groupby(names, dropna=False).ngroup() for names in (group_columns, columns))
    by_run = rows[metric].groupby([group, result, rows["run_id"].astype(str)]).mean()
    spreads = by_run.groupby(level=[0, 1]).agg(["min", "max"]).groupby(level=0).mean()
    runs = spreads.assign(size=rows["run_id"].astype(str).groupby(group).nunique()).apply(_describe_runs, axis=1)
    values = {metric: rows[metric].groupby(result).transform("mean"), "runs": group.map(runs)}
    return rows.assign(**values, **dict.fromkeys(POOLED_COLUMNS)).drop_duplicates(columns, keep="last")


def _describe_runs(spread: Any) -> str:
    """``3 runs: 0.394 to 0.396``; the range is left out if it rounds to one number."""
    ends = list(dict.fromkeys((units.number(spread["min"]), units.number(spread["max"]))))
    return format_count(int(spread["size"]), "run") + (f": {' to '.join(ends)}" if len(ends) > 1 else "")


_TableMaker: TypeAlias = Callable[[Frame], Iterable[ReportTable]]
_Line: TypeAlias = tuple[float, Sequence[ReportCell]]  # a value to sort by, and the cells


def _make_scoreboards(rows: Frame, make: _TableMaker) -> Iterator[Scoreboard]:
    """Yield a scoreboard per table; the suite or baseline is added to repeated captions."""
    settings = list(select.split_settings(rows))
    tables = [(setting, drop_empty_columns(table)) for setting in settings for table in make(setting.rows)]
    counts = Counter(table.caption for _, table in tables)
    for setting, table in tables:
        key = setting.key
        suffix = f", baseline {setting.baseline}, suite {key['suite']}" if counts[table.caption] > 1 else ""
        yield Scoreboard(format_config(key, {}), replace(table, caption=f"{table.caption}{suffix}"))


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
            cells = [_show_rows_label(part), estimate_cell, ReportCell(budget, rank), layers, _show_runs(part)]
            lines.append((mean, cells))
        for name, value in (("null: mean of v", piece.rows["mean_value_error"].mean()), ("null: zero", 1.0)):
            if units.is_present(value):
                cells = [ReportCell(name, mark="null"), _make_estimate_cell(Estimate(value))]
                lines.append((value, [*cells, *[ReportCell(units.EMPTY)] * 3]))
        caption = format_inputs(piece.inputs, piece.causal, piece.length)
        yield _make_table(caption, (f"Relative error{LOWER_IS_BETTER}", "Budget", "Mean over", RUNS), lines)


def _show_runs(rows: Frame) -> ReportCell:
    """The cell with the number of runs of a mechanism's rows, and the range over them."""
    return ReportCell(str(rows["runs"].iloc[0]))


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
    lines: list[_Line] = []
    for summary in summaries:
        score, (rank, budget) = summary[sort_column], summary["budget"]
        perplexity = ReportCell(units.ratio(*summary["perplexity"] or (None,)))
        part = rows[rows["label"] == summary["label"]]
        sample_cell = ReportCell(format_count(part["swap.segment"].nunique(), "segment"))
        cells = [show_label(summary["label"], is_baseline=summary["is_baseline"]), perplexity]
        cells += [ReportCell(units.number(summary[column])), ReportCell(budget, rank), sample_cell, _show_runs(part)]
        lines.append((score.value if score else math.inf, cells))
    head = (f"Perplexity, over the model's own{LOWER_IS_BETTER}", f"{column_title}{LOWER_IS_BETTER}")
    return _make_table(caption, (*head, "Budget", "Mean over", RUNS), lines)


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
            lines.append((mean.value, [_show_rows_label(part), estimate_cell, count_cell, _show_runs(part)]))
    return _make_table(caption, (f"{column_title}{LOWER_IS_BETTER}", "Mean over", RUNS), lines)


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
            cells += [ReportCell(str(row["runs"]))]
            lines.append((-row["accuracy"], cells))
        if "retrieval.chance" in last and len(chances := last["retrieval.chance"].dropna()):
            chance = float(chances.iloc[0])
            cells = [ReportCell("chance", mark="null"), _make_estimate_cell(Estimate(chance), units.percent)]
            lines.append((-chance, [*cells, ReportCell("computed"), ReportCell(units.EMPTY)]))
        if len(last):
            metric = next(iter(last["metric"].dropna()), "accuracy")
            yield _make_table(f"{inputs}, {int(length):,} tokens", (_capitalise(str(metric)), "Mean over", RUNS), lines)


TABLE_MAKERS: Mapping[str, _TableMaker] = {"fidelity": _list_errors, "swap": _list_swaps, "retrieval": _list_retrieval}
