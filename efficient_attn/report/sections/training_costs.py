"""Tables of what training took: for each mechanism and test, and for each trained model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import units
from ...units import Unit
from ..gather import Frame
from ..tables import ReportCell, ReportTable, drop_empty_columns, show_label, show_value
from .mechanism_result import MechanismResult
from .trained_scores import LearningTest

COST_NOTE = (
    "Steps and seconds to 90%: until the score on validation had 90% of its final improvement over the trivial score; "
    "mean over seeds, not for mechanisms at chance. Core minutes: training steps of all attempts of the mechanism, "
    "with other learning rates and seeds. On a CPU, times are processor time of all threads (in runs of older "
    "versions, passed time). FLOPs: of one model's training, estimated from its parameters and the pairs of queries "
    "and keys."
)
ATTEMPTS_NOTE = (
    "'grid': learning rates of all mechanisms; 'above' and 'below': rates beyond the grid, tried while the best lay at "
    "its end, or nothing was learned; 'best': further seeds with the selected rate; 'more': two seeds where the others "
    "differ by more than .05; 'given': at the rate that the suite states. Models that were made from trained ones are "
    "not listed. In runs of older versions, 'beyond' and "
    "'longer' were a rate outside the grid and twice the steps, if nothing was learned. The last three columns count "
    "parameters."
)
MEANS: tuple[tuple[str, Unit], ...] = ("steps", "count"), ("train.steps_to_90", "count"), ("train.s_to_90", "seconds")


def make_cost_table(tests: Sequence[LearningTest]) -> ReportTable:
    """For each mechanism and test: the selected learning rate, steps and time of training, parameters and FLOPs."""
    body = [_make_cost_row(test, result) for test in tests for result in test.scored_results]
    head = ("Variant", "Task", "Ended by", "Learning rate", "Steps", "Steps to 90%", "Time to 90%")
    head += ("Core minutes", "Parameters", "FLOPs")
    note = COST_NOTE + _describe_jobs(tests)
    return drop_empty_columns(ReportTable("Cost of training", head, body, text_columns=3, note=note))


def _describe_jobs(tests: Sequence[LearningTest]) -> str:
    """How many models were trained at the same time, if several were: they share caches and memory."""
    frames = [result.scored_attempts for test in tests for result in test.scored_results]
    jobs = {int(n) for frame in frames if "train.jobs" in frame for n in frame["train.jobs"].dropna()}
    if not jobs or jobs == {1}:
        return ""
    counts = " or ".join(map(str, sorted(jobs)))
    return f" Up to {counts} models were trained at the same time: they share caches, so that steps may take longer."


def _make_cost_row(test: LearningTest, result: MechanismResult) -> list[ReportCell]:
    best, rate = result.best_attempts, result.best_attempts["train.learning_rate"].iloc[0]
    ends = describe_ends(best["stop_reason"].fillna(units.EMPTY).tolist())
    cells = [show_label(result.label, is_baseline=result.is_baseline), ReportCell(test.name), ReportCell(ends)]
    cells.append(ReportCell(f"{rate:g}", rate))
    for column, unit in MEANS:
        mean = None if result.at_chance and column != "steps" else result.compute_mean(column)
        cells.append(show_value(mean and (round(mean.value) if unit == "count" else mean.value), unit))
    minutes = float(result.scored_attempts["train.train_s"].sum()) / 60
    cells.append(ReportCell(units.number(minutes), minutes))
    flops = result.compute_mean("train.flops")
    cells.append(show_value(int(best["parameters"].max()), "count"))
    cells.append(ReportCell(units.EMPTY) if flops is None else ReportCell(f"{flops.value:.1e}", flops.value))
    return cells


def describe_ends(texts: Sequence[str]) -> str:
    """``levelled off``, or ``levelled off (2), solved (1)``."""
    counts = {text: texts.count(text) for text in dict.fromkeys(texts)}
    if len(counts) == 1:
        return texts[0]
    return ", ".join(f"{text} ({count})" for text, count in counts.items())


def list_attempts(tests: Sequence[LearningTest]) -> ReportTable:
    """All trained models, including the selected ones."""
    pairs = [(test, result) for test in tests for result in test.scored_results]
    body = [_make_attempt_row(test, result, row) for test, result in pairs for row in _sort(result.scored_attempts)]
    head = ("Variant", "Task", "Attempt", "Ended by", "Learning rate", "Seed", "Validation", "Score", "Steps")
    head += ("Training", "In attention", "In all else", "In embeddings")
    caption = f"All {len(body)} attempts"
    return drop_empty_columns(ReportTable(caption, head, body, text_columns=4, note=ATTEMPTS_NOTE, folded=True))


def _sort(attempts: Frame) -> list[Any]:
    return attempts.sort_values(["seed", "train.learning_rate"], kind="stable").to_dict("records")


def _make_attempt_row(test: LearningTest, result: MechanismResult, row: dict[str, Any]) -> list[ReportCell]:
    rate = row["train.learning_rate"]
    texts = (result.label, test.name, str(row["train.attempt"]), str(row["stop_reason"] or units.EMPTY))
    cells = [ReportCell(f"{rate:g}", rate), show_value(row["seed"], "count")]
    cells += [show_value(row[f"train.{name}"], test.unit) for name in ("validation", "score")]
    cells += [show_value(row["steps"], "count"), show_value(row["train.train_s"], "seconds")]
    counts = (row.get(f"train.{part}") for part in ("attention", "mixer", "embeddings"))
    return [*map(ReportCell, texts), *cells, *(show_value(count, "count") for count in counts)]
