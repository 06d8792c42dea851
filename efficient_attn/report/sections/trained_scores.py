"""Scores of trained tasks: the results of all mechanisms in a test, and their ranking. Used by the page and the
terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ... import units
from ...units import Unit
from .. import formatting
from ..gather import Frame
from .mechanism_result import MechanismResult

BITS_METRIC = "bits a token"  # the only metric of which lower is better
# not failures; the last is of older rows
NEEDLESS_REASONS = (
    "the best learning rate lies within the grid",
    "the scores of all seeds are within 0.05",
    "the suite gives its learning rate",
    "more than chance was learned within the grid",
    "conversions do not differ with as many key-value heads as the original",
)
UPTRAINED = r"seed \d+, uptrain,"  # start of the inputs of models that were made from trained ones
GRID_REASON = "the suite gives no learning rate of"  # so that the grid is tried


@dataclass(frozen=True)
class LearningTest:
    """A task at a length. name: unique among tests. uptrained: rows with scores of models that were made from trained
    ones, which are not results of their mechanisms."""

    task: str
    name: str
    length: int
    metric: str
    results: tuple[MechanismResult, ...]
    uptrained: Frame

    @property
    def in_bits(self) -> bool:
        """Whether scores are in bits, where less is better."""
        return self.metric == BITS_METRIC

    @property
    def unit(self) -> Unit:
        """Unit of the scores."""
        return "number" if self.in_bits else "share"

    @property
    def heading(self) -> str:
        """The name, with the metric unless it is accuracy."""
        return self.name if self.metric in ("accuracy", "") else f"{self.name}, {self.metric}"

    @cached_property
    def scored_results(self) -> tuple[MechanismResult, ...]:
        """The mechanisms with a score."""
        return tuple(result for result in self.results if result.score is not None)

    def find(self, label: str) -> MechanismResult | None:
        """The result of a mechanism; None if it was not tested."""
        return next((result for result in self.results if result.label == label), None)

    @property
    def baseline(self) -> MechanismResult | None:
        """The baseline's result, if it has a score."""
        return next((result for result in self.scored_results if result.is_baseline), None)

    @property
    def is_ranked(self) -> bool:
        """Whether mechanisms can be ranked: there are scores, and the baseline is better than chance."""
        return bool(self.scored_results) and not (self.baseline is not None and self.baseline.at_chance)

    def describe_ranking(self) -> str:
        """Why mechanisms are not ranked; empty if they are."""
        if self.is_ranked or self.baseline is None:
            return ""
        if all(result.at_chance and result.all_attempts_made for result in self.scored_results):
            return f"{self.name}: no mechanism learned it, so it gives no ranking."
        return f"{self.name}: {self.baseline.label} itself is at chance, so there is no ranking."

    def list_best_first(self) -> list[MechanismResult]:
        """The results that are ranked, the best first: of trained models that have levelled off, at a learning rate
        within the grid."""
        sign, ranked = 1 if self.in_bits else -1, [x for x in self.scored_results if not x.unranked_reason]
        return sorted(ranked, key=lambda result: sign * result.score.value if result.score else 0.0)

    def list_values(self, column: str) -> list[Any]:
        """Distinct values of a column in the best attempts."""
        values = [x for result in self.scored_results for x in result.best_attempts[column].tolist()]
        return list(dict.fromkeys(x for x in values if units.is_present(x)))

    @cached_property
    def computed_scores(self) -> dict[str, float]:
        """The known scores of a random guess, of the most frequent answer if it is another, and of a shortcut."""
        chance, majority = (next(iter(self.list_values(f"train.{name}")), None) for name in ("chance", "majority"))
        shortcut, _ = self.find_shortcut() or (None, "")
        scores = {"chance": chance, "majority": None if majority == chance else majority, "shortcut": shortcut}
        return {name: float(score) for name, score in scores.items() if score is not None}

    def find_shortcut(self) -> tuple[float, str] | None:
        """Score and name of the task's shortcut; None if the shortcuts are the reaches of mechanisms."""
        return next((result.shortcut for result in self.scored_results if result.shortcut), None)

    def describe_shortcut(self) -> str:
        """The mechanisms that are not better than the best shortcut, and what the task then shows; empty if none."""
        shortcut, labels = self.find_shortcut(), [result.label for result in self.scored_results if result.at_shortcut]
        if shortcut is None or not labels:
            return ""
        score, description = shortcut
        verb = "is" if len(labels) == 1 else "are"
        text = f"{self.name}: {formatting.join_words(labels)} {verb} not significantly better than the shortcut,"
        caveats = self.list_values("train.caveat") if "train.caveat" in self.results[0].rows else []
        return " ".join([f"{text} {description} ({units.format_value(score, self.unit)}).", *map(str, caveats[:1])])

    def describe_examples(self) -> str:
        """The remark about the task's examples; empty without one."""
        notes = self.list_values("train.note") if "train.note" in self.results[0].rows else []
        return f"{self.name}: {notes[0]}" if notes else ""

    def list_remarks(self) -> list[str]:
        """What the page and the terminal say below the scores."""
        return [x for x in (self.describe_ranking(), self.describe_shortcut(), self.describe_examples()) if x]


def filter_trained(rows: Frame) -> Frame:
    """The rows of all tasks that train models, including those that failed before training."""
    if "train.score" not in rows:
        return rows[:0]
    is_training_task = rows["task"].isin(set(rows.loc[rows["train.score"].notna(), "task"]))
    return rows[is_training_task | ((rows["mode"] == "train") & (rows["status"] != "ok"))]


def drop_needless_rows(rows: Frame) -> Frame:
    """Drop rows of attempts that were not needed, as these are not missing."""
    reasons = rows["reason"].astype(object).fillna("")
    is_needless = reasons.isin(NEEDLESS_REASONS) | reasons.str.startswith(GRID_REASON)
    return rows[~((rows["status"] == "skipped") & is_needless)]


def list_tests(rows: Frame) -> Iterator[LearningTest]:
    """Each task at each length, in order of appearance; named by part if several parts have the same."""
    parts = rows.groupby(["task", "seq_len"], dropna=False)["part"].transform("nunique") > 1
    for (task, part, length), test_rows in rows.groupby(["task", "part", "seq_len"], sort=False, dropna=False):
        part_text = f" ({part})" if units.is_present(part) and bool(parts[test_rows.index[0]]) else ""
        metrics = test_rows["metric"].dropna()
        metric = str(metrics.iloc[0]) if len(metrics) else ""
        is_uptrained = test_rows["inputs"].astype(object).fillna("").str.match(UPTRAINED)
        uptrained = test_rows[is_uptrained & (test_rows["status"] == "ok") & test_rows["train.score"].notna()]
        results = (
            MechanismResult(str(label), variant_rows, metric == BITS_METRIC)
            for label, variant_rows in test_rows[~is_uptrained].groupby("label", sort=False)
        )
        name = f"{task}, length {int(length)}{part_text}"
        yield LearningTest(str(task), name, int(length), metric, tuple(results), uptrained)


def order_labels(tests: Sequence[LearningTest]) -> list[str]:
    """Labels by mean rank over all tests with a ranking, best first."""
    ranks: dict[str, list[float]] = {result.label: [] for test in tests for result in test.results}
    for test in tests:
        for rank, result in enumerate(test.list_best_first()) if test.is_ranked else ():
            ranks[result.label].append(rank / len(test.scored_results))
    return sorted(ranks, key=lambda label: sum(ranks[label]) / len(ranks[label]) if ranks[label] else 1.0)
