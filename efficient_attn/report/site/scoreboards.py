"""Scoreboards of a task: best first, with the baseline marked.

Qualities do not depend on the machine, the threads or the suite's batch: those of all runs are pooled, one table for
each model, length and direction, with the number of runs and the range over them. The tables of other tasks are on the
pages of their runs only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ... import units
from ...results.section import Section
from ...results.stats import Estimate, estimate_mean
from ...spec import format_label
from .. import approximation_errors, page, select
from ..formatting import format_config, format_count, format_inputs, join_words
from ..gather import Frame
from ..sections import swap, trained_scores
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_value
from .site_names import capitalise

RUNS = "Runs"
LOWER_IS_BETTER = " (lower is better)"
COMPUTED = ("computed", units.EMPTY)  # the last cells of scores that need no mechanism
# what a quality does not depend on; batch describes timed calls, not training
POOLED_COLUMNS = ("machine", "device", "threads", "batch", "fill", "suite", "baseline")
GROUP_COLUMNS = ["label", "inputs", "causal", "seq_len", "dtype", "heads", "head_dim"]
RESULT_COLUMNS = [*GROUP_COLUMNS, "layer", "seed", "swap.segment"]


class Scoreboard(NamedTuple):
    """A table with its configuration."""

    config_text: str
    table: ReportTable


def list_scoreboards(rows: Frame, task: str, sections: Iterable[Section]) -> list[Scoreboard]:
    """Return the scoreboards of a task; none if it is not known which scores are better. rows: oldest first."""
    rows = rows[rows["task"] == task]
    # labels that do not name their run
    rows = rows.assign(label=[format_label(*pair) for pair in zip(rows["variant"], rows["backend"], strict=True)])
    trained = trained_scores.filter_trained(rows)
    if len(trained):
        return list(_make_scoreboards(trained.assign(**dict.fromkeys(POOLED_COLUMNS[:-2])), _list_trained))
    by_name = {section.name: section for section in (*page.BUILT_IN, *sections)}
    layout = next((section.layout for section in by_name.values() if section.task == task), "")
    make, metrics = POOLED_LAYOUTS.get(layout, (_list_trained, ()))
    ok = rows[rows["status"] == "ok"]
    metric = next((name for name in metrics if name in ok and ok[name].notna().any()), None)
    return list(_make_scoreboards(_pool_runs(ok, metric), make)) if metric else []


def _pool_runs(rows: Frame, metric: str) -> Frame:
    """One row per result, with the mean of a metric over runs, and ``runs``: their number, and the range over them."""
    columns, group_columns = ([n for n in names if n in rows] for names in (RESULT_COLUMNS, GROUP_COLUMNS))
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


def _make_scoreboards(rows: Frame, make: _TableMaker) -> Iterator[Scoreboard]:
    """Yield a scoreboard per table; the suite or baseline is added to repeated captions."""
    settings = list(select.split_settings(rows))
    tables = [(setting, drop_empty_columns(table)) for setting in settings for table in make(setting.rows)]
    counts = Counter(table.caption for _, table in tables)
    for setting, table in tables:
        key = setting.key
        suffix = f", baseline {setting.baseline}, suite {key['suite']}" if counts[table.caption] > 1 else ""
        yield Scoreboard(format_config(key, {}), replace(table, caption=f"{table.caption}{suffix}"))


def _make_table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[ReportCell]], note: str = "", *, descending: bool = False
) -> ReportTable:
    """Make a table of rows sorted by the first cell after the label, of which missing values come last."""
    values = [math.inf if row[1].sort is None else row[1].sort for row in rows]
    order = sorted(range(len(rows)), key=values.__getitem__, reverse=descending)
    return ReportTable(caption, ("Mechanism", *head), [rows[index] for index in order], note=note)


def _show_label(label: object, *, is_baseline: Any) -> ReportCell:
    return ReportCell(str(label), mark="base", subtext="baseline") if is_baseline else ReportCell(str(label))


def _make_row(rows: Frame, *cells: ReportCell) -> list[ReportCell]:
    """The cells between a mechanism's label and the number of runs with its rows."""
    label = _show_label(rows["label"].iloc[0], is_baseline=rows["is_baseline"].any())
    return [label, *cells, ReportCell(str(rows["runs"].iloc[0]))]


def _make_null_row(name: str, cell: ReportCell, *texts: str) -> list[ReportCell]:
    """The row of a score that needs no mechanism."""
    return [ReportCell(name, mark="null"), cell, *map(ReportCell, texts)]


def _make_estimate_cell(estimate: Estimate, format_value: Callable[[float], str] = units.number) -> ReportCell:
    text, ends = format_value(estimate.value), (estimate.low, estimate.high)
    if all(map(units.is_present, ends)):
        text += f" ({units.INTERVAL_DASH.join(format_value(end) for end in ends if end is not None)})"
    return ReportCell(text, estimate.value)


def _list_trained(rows: Frame) -> Iterator[ReportTable]:
    return (_make_test_table(test) for test in trained_scores.list_tests(rows) if test.scored_results)


def _make_test_table(test: trained_scores.LearningTest) -> ReportTable:
    rows = []
    for result in test.scored_results:
        seeds, sizes = len(result.best_attempts), result.best_attempts["parameters"].dropna()
        texts = format_count(seeds, "seed"), units.integer(sizes.max()) if len(sizes) else ""
        label = _show_label(result.label, is_baseline=result.is_baseline)
        rows.append([label, result.show_score(), *map(ReportCell, texts)])
    rows += [_make_null_row(name, show_value(x, test.unit), *COMPUTED) for name, x in test.computed_scores.items()]
    unscored = [result.label for result in test.results if result.score is None]
    notes = (test.describe_ranking(), f"Without a score: {join_words(unscored)}." if unscored else "")
    head = (capitalise(test.metric) + (LOWER_IS_BETTER if test.in_bits else ""), "Mean over", "Parameters")
    return _make_table(test.name, head, rows, " ".join(filter(None, notes)), descending=not test.in_bits)


def _list_errors(rows: Frame) -> Iterator[ReportTable]:
    for piece in select.slice_fidelity(select.filter_fidelity(rows)):
        budgets, body = select.find_budgets(piece.rows), []
        for label, part in piece.rows.groupby("label", sort=False):
            errors = part["relative_error"].tolist()
            ends = approximation_errors.compute_error_interval(errors)
            rank, budget = budgets[str(label)]
            layers = ReportCell(format_count(part["layer"].nunique(), "layer"))
            error = _make_estimate_cell(Estimate(sum(errors) / len(errors), *ends))
            body.append(_make_row(part, error, ReportCell(budget, rank), layers))
        nulls = (("null: mean of v", piece.rows["mean_value_error"].mean()), ("null: zero", 1.0))
        body += [_make_null_row(name, show_value(x), *[units.EMPTY] * 3) for name, x in nulls if units.is_present(x)]
        caption = format_inputs(piece.inputs, piece.causal, piece.length)
        yield _make_table(caption, (f"Relative error{LOWER_IS_BETTER}", "Budget", "Mean over", RUNS), body)


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
    summaries, (column, column_title) = list(swap.summarise_segments(rows)), _choose_distance(rows)
    sort_column = "perplexity" if any(summary["perplexity"] for summary in summaries) else "divergence"
    body = []
    for summary in summaries:
        score, (rank, budget) = summary[sort_column], summary["budget"]
        perplexity = ReportCell(units.ratio(*summary["perplexity"] or (None,)), score.value if score else None)
        part = rows[rows["label"] == summary["label"]]
        segments = ReportCell(format_count(part["swap.segment"].nunique(), "segment"))
        distance = ReportCell(units.number(summary[column]))
        body.append(_make_row(part, perplexity, distance, ReportCell(budget, rank), segments))
    head = (f"Perplexity, over the model's own{LOWER_IS_BETTER}", f"{column_title}{LOWER_IS_BETTER}")
    return _make_table(caption, (*head, "Budget", "Mean over", RUNS), body)


def _choose_distance(rows: Frame) -> tuple[str, str]:
    first, second = swap.DIVERGENCE_COLUMNS
    decoder = first in rows and rows[first].notna().any()
    return (first, "KL per token") if decoder else (second, "Error of hidden states")


def _make_layer_table(rows: Frame, caption: str) -> ReportTable:
    column, column_title = _choose_distance(rows)
    body = []
    for _, part in rows.groupby("label", sort=False):
        layers = part.groupby("layer")[column].mean().dropna().tolist()
        if layers:
            mean = estimate_mean(layers)
            estimate_cell = _make_estimate_cell(Estimate(mean.value, *(mean.interval() or (None, None))))
            count_cell = ReportCell(format_count(len(layers), "layer"))
            body.append(_make_row(part, estimate_cell, count_cell))
    return _make_table(caption, (f"{column_title}{LOWER_IS_BETTER}", "Mean over", RUNS), body)


def _list_retrieval(rows: Frame) -> Iterator[ReportTable]:
    for (inputs, length), piece in rows.groupby(["inputs", "seq_len"], sort=False):
        last, body = piece[piece["accuracy"].notna()].drop_duplicates("label", keep="last"), []
        for _, part in last.groupby("label", sort=False):
            row = part.iloc[0]
            ends = (row.get(f"retrieval.accuracy_{end}") for end in ("low", "high"))
            count = row.get("retrieval.questions")
            questions = format_count(int(count), "question") if units.is_present(count) else units.EMPTY
            accuracy = _make_estimate_cell(Estimate(row["accuracy"], *ends), units.percent)
            body.append(_make_row(part, accuracy, ReportCell(questions)))
        if "retrieval.chance" in last and len(chances := last["retrieval.chance"].dropna()):
            body.append(_make_null_row("chance", show_value(chances.iloc[0], "share"), *COMPUTED))
        if body:
            metric = capitalise(str(next(iter(last["metric"].dropna()), "accuracy")))
            caption = f"{inputs}, {int(length):,} tokens"
            yield _make_table(caption, (metric, "Mean over", RUNS), body, descending=True)


# by layout: what makes the tables, and the metrics, of which the first that was measured is pooled
POOLED_LAYOUTS: Mapping[str, tuple[_TableMaker, Sequence[str]]] = {
    "fidelity": (_list_errors, ["relative_error"]),
    "swap": (_list_swaps, ["swap.loss", "swap.hidden_error"]),
    "retrieval": (_list_retrieval, ["accuracy"]),
}
