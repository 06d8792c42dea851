"""Ability figure: scores of trained models on tasks, one row per mechanism and one panel per task and length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ... import units
from ...results.stats import Estimate
from .. import formatting, select
from ..drawing.figures import make_dot_plot
from ..drawing.panel_data import make_point
from ..drawing.style import LineStyles
from ..gather import Frame
from ..sections.trained_scores import filter_trained, list_tests
from . import selection
from .selection import Filters, PlotRows
from .table_columns import PaperFigure, TableCell, TableColumn, make_estimate_cell

AT_CHANCE_TEXT, CHANCE_NAME = "at chance", "chance"
AT_CHANCE_NOTE = "At chance: not significantly better than a guess."
SHARE_TICKS = {-0.08: "", 0.0: "0", 0.5: "50", 1.0: "100", 1.08: ""}
TRAINED_CAPTION = "Test scores of models trained from scratch with each mechanism, mean and 95% interval over seeds"
RETRIEVAL_CAPTION = (
    "Retrieval accuracy of {} with each mechanism in place of its attention, with 95% intervals over questions"
)


class _Scores(NamedTuple):
    """Scores of one test by label, best first. at_chance: labels that are not significantly better than a guess."""

    caption: str
    metric: str
    is_share: bool
    by_label: Mapping[str, Estimate]
    chance: float | None
    at_chance: frozenset[str]


def list_tested_rows(rows: Frame, filters: Filters) -> list[PlotRows]:
    """The rows of each test: a task that models were trained on, or a kind of needle to retrieve, at a length."""
    tested = filter_trained(rows)
    if "retrieval.needles" in rows:
        retrieved = rows[rows["retrieval.needles"].notna() & (rows["status"] == "ok")]
        tested = select.pd.concat([tested, retrieved.assign(task=retrieved["retrieval.needles"])])
    tests = []
    # the setting's batch is that of timed calls
    for setting in select.split_settings(selection.filter_rows(tested.assign(batch=None), filters)):
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
    shown = {label: scores.by_label[label] for label in labels if label in scores.by_label}
    format_value, scale = (units.percent, 100) if scores.is_share else (units.number, 1)
    cells = {} if scores.chance is None else {CHANCE_NAME: TableCell(format_value(scores.chance))}
    cells |= {label: make_estimate_cell(score, format_value, scale) for label, score in shown.items()}
    cells |= {label: TableCell(AT_CHANCE_TEXT) for label in shown if label in scores.at_chance}
    panel = make_dot_plot(
        [
            make_point(label, line_styles[label], shown[label], Estimate(float(y)), cells[label].text)
            for y, label in enumerate(reversed(shown))
        ],
        "share" if scores.is_share else "number",
        title=f"Scores: {plot_rows.config['task']}",
        caption="",
        alt=f"Scores of {formatting.join_words(shown)}.",
        xlabel=f"{scores.metric} (%)" if scores.is_share else scores.metric,
        log_x=False,
        level_x=scores.chance,
        ticks=SHARE_TICKS if scores.is_share else None,
    )
    columns = [TableColumn(scores.metric.capitalize(), cells)]
    notes = (AT_CHANCE_NOTE,) if scores.at_chance.intersection(shown) else ()
    return PaperFigure(panel, columns, scores.caption, notes, ("Vertical line: chance.",))


def _read_scores(plot_rows: PlotRows) -> _Scores:
    if plot_rows.config["model"]:
        return _read_retrieval(plot_rows)
    (test,) = list_tests(plot_rows.rows)
    results = test.list_best_first()
    metric = f"{test.metric} (lower is better)" if test.in_bits else test.metric or "score"
    scores = {result.label: result.score for result in results if result.score is not None}
    at_chance = frozenset(result.label for result in results if result.at_chance)
    return _Scores(TRAINED_CAPTION, metric, not test.in_bits, scores, test.computed_scores.get("chance"), at_chance)


def _read_retrieval(plot_rows: PlotRows) -> _Scores:
    rows = plot_rows.rows.drop_duplicates("label", keep="last").sort_values("accuracy", ascending=False, kind="stable")
    columns = ["label", "accuracy", "retrieval.accuracy_low", "retrieval.accuracy_high"]
    scores = {label: Estimate(*estimate) for label, *estimate in rows[columns].itertuples(index=False, name=None)}
    chance = float(rows["retrieval.chance"].iloc[0])
    at_chance = frozenset(label for label, score in scores.items() if score.ends[0] <= chance)
    return _Scores(RETRIEVAL_CAPTION.format(plot_rows.config["model"]), "accuracy", True, scores, chance, at_chance)
