"""Figures of quality: approximation errors, against cost or one row per mechanism, and scores of trained models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ... import units
from ...errors import UsageError
from ...results.stats import Estimate
from .. import formatting, select
from ..answers.pareto import classify_points, list_points
from ..approximation_errors import EXACT_TEXT, ROUNDING_ERROR, compute_error_interval
from ..drawing.panel_data import make_dot_plot, make_point
from ..drawing.style import LineStyles
from ..gather import Frame
from ..sections import approximation, tradeoffs
from ..sections.model_pareto import CUT_NOTE, SWAP_COSTS, make_quality_panel
from ..sections.swap import summarise_segments
from ..sections.tradeoffs import CostName
from ..sections.trained_scores import filter_trained, list_tests
from .selection import Filters, PlotRows, filter_rows, list_timed_rows
from .table_columns import PaperFigure, TableCell, TableColumn, describe_errors, make_error_cell, make_estimate_cell

UNCLEAR_NOTE = "Unclear: not significantly different from a mechanism that seems better in both."
PERPLEXITY_NOTE = "Time, of a whole pass, and perplexity are over the unmodified model's; memory is without weights."
FRONT_NOTE = "The front is that of all measured mechanisms, including those that are not shown."
NULL_NAME = "mean of v (null)"
AT_CHANCE_TEXT, CHANCE_NAME = "at chance", "chance"
AT_CHANCE_NOTE = "At chance: not significantly better than a guess."
SHARE_TICKS = {-0.08: "", 0.0: "0", 0.5: "50", 1.0: "100", 1.08: ""}
TRAINED_CAPTION = "Test scores of models trained from scratch with each mechanism, mean and 95% interval over seeds"
RETRIEVAL_CAPTION = (
    "Retrieval accuracy of {} with each mechanism in place of its attention, with 95% intervals over questions"
)


def list_front_rows(rows: Frame, filters: Filters) -> list[PlotRows]:
    """All timed configurations, and each at each of several requested lengths."""
    lengths = filters.get("seq_len", ())
    if len(lengths) < 2:
        return list_timed_rows(rows, filters)
    return [
        replace(plot_rows, config={**plot_rows.config, "seq_len": length})
        for length in lengths
        for plot_rows in list_timed_rows(rows, {**filters, "seq_len": (length,)})
    ]


def count_inexact_points(against: CostName, plot_rows: PlotRows) -> int:
    """Number of mechanisms with an approximation error; 0 for a single one, which makes no front."""
    points = list_points(plot_rows.decision_table, against) if plot_rows.decision_table else []
    count = sum(point.error.value >= ROUNDING_ERROR for point in points)
    return count if count > 1 else 0


def make_front_figure(
    against: CostName, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles
) -> PaperFigure:
    """Errors against a cost at the longest length, with the Pareto front."""
    assert plot_rows.decision_table is not None
    decisions = tuple(decision for decision in plot_rows.decisions if decision.label in labels)
    table = replace(plot_rows.decision_table, decisions=decisions)
    points = classify_points(list_points(plot_rows.decision_table, against))
    ranked = sorted((p for p in points if p.point.label in (table.baseline, *labels)), key=lambda p: p.point.cost.value)
    columns = {
        tradeoffs.COST_AXES[against]: {p.point.label: make_estimate_cell(p.point.cost, units.ratio) for p in ranked},
        "error": {p.point.label: make_error_cell(p.point.error) for p in ranked},
        "pareto": {p.point.label: TableCell(p.status) for p in ranked},
    }
    length = "" if "seq_len" in plot_rows.config else f" at {units.short_length(table.lengths[-1])}"
    unclear = (UNCLEAR_NOTE,) if any(p.status == "unclear" for p in ranked) else ()
    return PaperFigure(
        tradeoffs.make_pareto_panel(table, against, ranked, line_styles),
        [TableColumn(head.capitalize(), cells) for head, cells in columns.items()],
        f"Relative error against {next(iter(columns))} over that of {table.baseline}{length}, with 95% intervals",
        (describe_errors(decisions), *unclear, *((FRONT_NOTE,) if len(ranked) < len(points) else ())),
        ("Line: Pareto front; grey: significantly dominated; horizontal line: predicting the mean of v.",),
    )


def list_swapped_rows(rows: Frame, filters: Filters) -> list[PlotRows]:
    """The rows of each pretrained model and length in which mechanisms replace the attention of all layers."""
    rows, names = filter_rows(rows, filters), ["inputs", "causal", "mode", "seq_len"]
    swapped = rows[(rows["task"] == "swap") & (rows["status"] == "ok") & rows["layer"].isna()]
    return [
        PlotRows(setting.key | dict(zip(names, (*values, int(n)), strict=True)), part, setting.key["baseline"])
        for setting in select.split_settings(swapped)
        for (*values, n), part in setting.rows.groupby(names, dropna=False, sort=False)
    ]


def rank_by_perplexity(plot_rows: PlotRows) -> list[str]:
    """Labels by perplexity, lowest first, without the baseline's."""
    lines = [line for line in summarise_segments(plot_rows.rows) if line["perplexity"] and not line["is_baseline"]]
    return [line["label"] for line in sorted(lines, key=lambda line: line["perplexity"].value)]


def make_perplexity_figure(
    against: CostName, plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles
) -> PaperFigure:
    """Perplexities of a pretrained model against a cost of a pass, with the Pareto front."""
    cost = next(cost for cost in SWAP_COSTS if cost.title == against)
    size = SWAP_COSTS[-1] if against == "time" else cost
    summaries = {line["label"]: line for line in summarise_segments(plot_rows.rows) if line["perplexity"]}
    lines = [summaries[label] for label in (*plot_rows.baseline_labels, *labels) if label in summaries]
    left_out = [line for line in summaries.values() if line not in lines]
    panel = make_quality_panel(lines, cost, plot_rows.format_config(), line_styles, left_out)
    if panel is None:
        raise UsageError(f"plot: --figure perplexity: {cost.description} is known of no two mechanisms that differ")
    columns: dict[str, dict[str, TableCell]] = {"Time": {}, "Perplexity": {}, size.title.capitalize(): {}}
    for line in lines:
        ratios = [Estimate(1.0)] * 2 if line["is_baseline"] else [SWAP_COSTS[0].find_estimate(line), line["perplexity"]]
        row = *(make_estimate_cell(ratio, units.ratio) for ratio in ratios), TableCell(units.size(line[size.column]))
        for cells, cell in zip(columns.values(), row, strict=True):
            cells[line["label"]] = cell
    absent = [f"Not measured: {cost.description} of {x}." for x in columns["Time"] if x not in panel.labels]
    counts = plot_rows.rows.groupby("label", sort=False)["swap.segment"].nunique()
    fewer = [f"{x['label']} {counts[x['label']]}" for x in lines if counts[x["label"]] < counts.max()]
    segments = f"Segments at N = {plot_rows.config['seq_len']:,}: {'; '.join([str(counts.max()), *fewer])}."
    intervals = ", with 95% intervals over segments of text" if any(x["perplexity"].low for x in lines) else ""
    return PaperFigure(
        panel,
        [TableColumn(head, cells) for head, cells in columns.items()],
        f"Perplexity against {cost.description}{intervals}",
        (PERPLEXITY_NOTE, segments),
        (f"Line: Pareto front.{CUT_NOTE * bool(panel.level)}", *((FRONT_NOTE,) if left_out else ()), *absent),
    )


def rank_by_error(plot_rows: PlotRows) -> list[str]:
    """Labels by error, lowest first, without those that are exact up to rounding."""
    means = plot_rows.rows.groupby("label")["relative_error"].mean().sort_values(kind="stable")
    return [str(label) for label, mean in means.items() if mean >= ROUNDING_ERROR]


def make_error_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """Errors next to that of a trivial predictor."""
    means = plot_rows.rows.groupby("label")["relative_error"].transform("mean")
    # mechanisms that are exact up to rounding are listed in a lane or a note of the panel
    rows = plot_rows.rows[plot_rows.rows["label"].isin(labels) | (means < ROUNDING_ERROR)]
    config = plot_rows.config
    piece = select.Slice(None, config.get("causal"), rows, config.get("inputs"), config.get("seq_len"))
    panel = approximation.make_dot_panel(piece, line_styles)
    assert panel is not None
    errors = rows.groupby("label")["relative_error"].apply(list)
    cells = {NULL_NAME: TableCell(units.number(rows["mean_value_error"].mean()))}
    cells |= {str(label): TableCell(EXACT_TEXT) for label in errors.index if label not in labels}
    for label in labels:
        ends = [end for end in compute_error_interval(errors[label]) if units.is_present(end)]
        cells[label] = make_estimate_cell(Estimate(sum(errors[label]) / len(errors[label]), *ends))
    return PaperFigure(
        panel,
        (TableColumn("Relative error", cells),),
        "Relative error against exact attention, mean and 95% interval over layers",
        symbols=("Bands: errors of predicting the mean of v and zero.",),
    )


# -- scores --------------------------------------------------------------------------------------------------------


class _Scores(NamedTuple):
    """Scores of one test by label, best first. at_chance: labels that are not significantly better than a guess."""

    caption: str
    metric: str
    is_share: bool
    by_label: Mapping[str, Estimate]
    chance: float | None
    at_chance: frozenset[str]
    unranked: tuple[str, ...] = ()


def list_tested_rows(rows: Frame, filters: Filters) -> list[PlotRows]:
    """The rows of each test: a task that models were trained on, or a kind of needle to retrieve, at a length."""
    tested = filter_trained(rows)
    if "retrieval.needles" in rows:
        retrieved = rows[rows["retrieval.needles"].notna() & (rows["status"] == "ok")]
        tested = select.pd.concat([tested, retrieved.assign(task=retrieved["retrieval.needles"])])
    tests = []
    # the setting's batch is that of timed calls
    for setting in select.split_settings(filter_rows(tested.assign(batch=None), filters)):
        inputs = setting.rows["inputs"].where(setting.rows["mode"].isna(), None)
        for (task, part, n, model), part_rows in setting.rows.groupby(
            ["task", "part", "seq_len", inputs.str.rpartition(":")[0]], dropna=False, sort=False
        ):
            test = {"task": task, "part": part, "seq_len": int(n), "model": formatting.name_model(model)}
            tests.append(PlotRows(setting.key | test, part_rows))
    return tests


def rank_by_score(plot_rows: PlotRows) -> list[str]:
    """Labels by score, best first."""
    return list(_read_scores(plot_rows).by_label)


def make_ability_figure(plot_rows: PlotRows, labels: Sequence[str], line_styles: LineStyles) -> PaperFigure:
    """A row per mechanism with its score and interval; a line at the score of a guess."""
    scores = _read_scores(plot_rows)
    scored = {label: scores.by_label[label] for label in labels if label in scores.by_label}
    format_value, scale = (units.percent, 100) if scores.is_share else (units.number, 1)
    cells = {} if scores.chance is None else {CHANCE_NAME: TableCell(format_value(scores.chance))}
    cells |= {label: make_estimate_cell(score, format_value, scale) for label, score in scored.items()}
    cells |= {label: TableCell(AT_CHANCE_TEXT) for label in scored if label in scores.at_chance}
    panel = make_dot_plot(
        [
            make_point(label, line_styles[label], scored[label], Estimate(float(y)), cells[label].text)
            for y, label in enumerate(reversed(scored))
        ],
        "share" if scores.is_share else "number",
        title=f"Scores: {plot_rows.config['task']}",
        xlabel=f"{scores.metric} (%)" if scores.is_share else scores.metric,
        log_x=False,
        level_x=scores.chance,
        ticks=SHARE_TICKS if scores.is_share else None,
    )
    columns = [TableColumn(scores.metric.capitalize(), cells)]
    notes = (AT_CHANCE_NOTE,) if scores.at_chance.intersection(scored) else ()
    if scores.unranked:
        notes += (f"Not ranked: {formatting.join_words(scores.unranked)}.",)
    return PaperFigure(panel, columns, scores.caption, notes, ("Vertical line: chance.",))


def _read_scores(plot_rows: PlotRows) -> _Scores:
    if plot_rows.config["model"]:
        return _read_retrieval(plot_rows)
    (test,) = list_tests(plot_rows.rows)
    results = test.list_best_first()
    metric = f"{test.metric} (lower is better)" if test.in_bits else test.metric or "score"
    scores = {result.label: result.score for result in results if result.score is not None}
    at_chance = frozenset(result.label for result in results if result.at_chance)
    unranked = tuple(f"{x.label} ({x.unranked_reason})" for x in test.scored_results if x.unranked_reason)
    chance = test.computed_scores.get("chance")
    return _Scores(TRAINED_CAPTION, metric, not test.in_bits, scores, chance, at_chance, unranked)


def _read_retrieval(plot_rows: PlotRows) -> _Scores:
    rows = plot_rows.rows.drop_duplicates("label", keep="last").sort_values("accuracy", ascending=False, kind="stable")
    columns = ["label", "accuracy", "retrieval.accuracy_low", "retrieval.accuracy_high"]
    scores = {label: Estimate(*estimate) for label, *estimate in rows[columns].itertuples(index=False, name=None)}
    chance = float(rows["retrieval.chance"].iloc[0])
    at_chance = frozenset(label for label, score in scores.items() if score.ends[0] <= chance)
    return _Scores(RETRIEVAL_CAPTION.format(plot_rows.config["model"]), "accuracy", True, scores, chance, at_chance)
