"""Scores of trained tasks: for each mechanism and test, the rows at its best learning rate, one per seed, and whether
they are better than chance. Used by the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ... import units
from ...results.stats import Estimate, estimate_mean
from ...units import Unit
from .. import formatting
from ..gather import Frame
from ..tables import ReportCell

BITS_METRIC = "bits a token"  # the only metric of which lower is better
REACH_SHORTCUT = "all that lies within reach of its keys"  # a shortcut of a mechanism, not of a task
NEEDLESS_REASON = "more than chance was learned within the grid"  # not a failure
COMPUTED_REASON = "computed, not trained"  # the task is out of the mechanism's reach
ATTEMPT_STATUSES = "ok", "invalid"  # a NaN loss is an attempt too
EXTRA_ATTEMPTS = {"beyond", "longer"}  # required before a task counts as not learned
FULL_REACH = 0.999  # a larger reach is no limitation


@dataclass(frozen=True)
class MechanismResult:
    """A mechanism in a test. rows: all attempts, including failed and skipped ones."""

    label: str
    rows: Frame
    in_bits: bool

    @property
    def is_baseline(self) -> bool:
        """Whether it is the baseline."""
        return bool(self.rows["is_baseline"].any())

    @cached_property
    def scored_attempts(self) -> Frame:
        """The attempts with a score."""
        return self.rows[(self.rows["status"] == "ok") & self.rows["train.score"].notna()]

    @cached_property
    def best_attempts(self) -> Frame:
        """One row per seed, with the learning rate and steps used for further seeds; without these, with those that
        were best on validation."""
        attempts = self.scored_attempts
        best = attempts[attempts["train.attempt"] == "best"]
        if best.empty:
            options: Any = {"kind": "stable", "na_position": "first"}
            best = attempts.sort_values("train.validation", ascending=not self.in_bits, **options)
        for name in ("train.learning_rate", "train.budget"):
            attempts = attempts[attempts[name] == best[name].iloc[-1]]
        return attempts.drop_duplicates("seed", keep="last").sort_values("seed")

    def get_first_samples(self, name: str) -> tuple[tuple[float, ...], ...]:
        """The ``curve`` or ``alignment`` of the first seed in `best_attempts`; empty if it was not stored."""
        samples: Any = self.best_attempts[name].iloc[0] if name in self.best_attempts else None
        return samples if isinstance(samples, tuple) else ()

    @cached_property
    def score(self) -> Estimate | None:
        """The mean score of the scored attempts; None without any."""
        if self.scored_attempts.empty:
            return None
        return self.compute_mean("train.score", most=None if self.in_bits else 1.0)

    def compute_mean(self, column: str, most: float | None = None) -> Estimate | None:
        """Mean of a column over seeds, with its 95% interval if there are several. most: upper bound of values from 0
        on, to which the interval is clipped."""
        values = self.best_attempts.reindex(columns=[column])[column].dropna().astype(float).tolist()
        if not values:
            return None
        average = estimate_mean(values)
        interval = average.interval() or ()
        return Estimate(average.value, *(interval if most is None else (min(max(x, 0.0), most) for x in interval)))

    @cached_property
    def at_chance(self) -> bool:
        """Whether no attempt is significantly better than chance and majority."""
        return all(_is_at_chance(row, self.in_bits) for row in self.scored_attempts.to_dict("records"))

    @property
    def attempt_kinds(self) -> list[str]:
        """Kinds of the attempts with the first seed. After a NaN loss the kind is only in the inputs."""
        attempts = self.rows[self.rows["status"].isin(ATTEMPT_STATUSES)]
        pairs = zip(attempts["train.attempt"], attempts["inputs"], strict=True)
        kinds = [str(kind) if units.is_present(kind) else f"{inputs},,".split(",")[1].strip() for kind, inputs in pairs]
        return [kind for kind in kinds if kind != "best"]

    @property
    def out_of_reach(self) -> bool:
        """Whether a model with this reach is at chance by computation."""
        return bool(self.rows["reason"].astype(object).fillna("").str.contains(COMPUTED_REASON, regex=False).any())

    @property
    def all_attempts_made(self) -> bool:
        """Whether all attempts were made that are required to report a task as not learned."""
        return self.out_of_reach or set(self.attempt_kinds) >= EXTRA_ATTEMPTS

    @property
    def reach(self) -> float | None:
        """Best possible score within the mechanism's reach, if the distances of answers are known."""
        rows = self.best_attempts if len(self.scored_attempts) else self.scored_attempts
        reaches = rows[rows["train.way"] == REACH_SHORTCUT]["train.shortcut"].dropna()
        return float(reaches.iloc[-1]) if len(reaches) else None

    @property
    def learned_within_reach(self) -> bool:
        """Whether the interval contains the best possible score within reach. The interval is over seeds, or over
        examples for a single seed."""
        score, reach = self.score, self.reach
        if score is None or reach is None or reach >= FULL_REACH or self.at_chance:
            return False
        ends: Any = score[1:]
        if score.low is None:
            ends = (self.best_attempts.iloc[-1].get(f"train.{end}") for end in ("low", "high"))
        low, high = ends
        return units.is_present(low) and units.is_present(high) and bool(low <= reach <= high)

    def show_score(self) -> ReportCell:
        """The score, or the reason why there is none."""
        if self.score is None:
            return ReportCell(str(self.rows["status"].iloc[-1]))
        return ReportCell(self._describe_score(self.score), self.score.value)

    def _describe_score(self, score: Estimate) -> str:
        if self.at_chance and self.out_of_reach:
            return "at chance: no answer within its reach"
        if self.at_chance and self.all_attempts_made:
            return f"not learned ({formatting.format_count(len(self.attempt_kinds), 'attempt')})"
        if self.at_chance:
            return "at chance, too early to say"
        score_text = units.number(score.value) if self.in_bits else units.percent(score.value)
        if score.low is None or score.high is None:
            return f"{score_text} ({formatting.format_count(len(self.best_attempts), 'seed')})"
        ends = (units.number(end if self.in_bits else 100 * end) for end in (score.low, score.high))
        return f"{score_text} ({units.INTERVAL_DASH.join(ends)})"


def _is_at_chance(row: dict[str, Any], in_bits: bool) -> bool:
    """Whether a score is not significantly better than chance and majority."""
    baselines = [row[name] for name in ("train.chance", "train.majority") if units.is_present(row[name])]
    if not baselines:
        return False
    if in_bits:
        return bool(row["train.score"] >= min(baselines))
    low: Any = row.get("train.low")  # None if the score is not a count
    low = low if units.is_present(low) else row["train.score"]
    return bool(low <= max(baselines))


@dataclass(frozen=True)
class LearningTest:
    """A task at a length. name: unique among tests."""

    name: str
    length: int
    metric: str
    results: tuple[MechanismResult, ...]

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
        """The results with scores, the best first."""
        sign = 1 if self.in_bits else -1
        return sorted(self.scored_results, key=lambda result: sign * result.score.value if result.score else 0.0)

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
        for result in self.scored_results:
            score, name = result.best_attempts[["train.shortcut", "train.way"]].iloc[-1]
            if units.is_present(score) and name != REACH_SHORTCUT:
                return float(score), str(name) if units.is_present(name) else ""
        return None


def filter_trained(rows: Frame) -> Frame:
    """The rows of all tasks that train models, including those that failed before training."""
    if "train.score" not in rows:
        return rows[:0]
    is_training_task = rows["task"].isin(set(rows.loc[rows["train.score"].notna(), "task"]))
    return rows[is_training_task | ((rows["mode"] == "train") & (rows["status"] != "ok"))]


def drop_needless_rows(rows: Frame) -> Frame:
    """Drop rows of attempts that were not needed, as these are not missing."""
    return rows[~((rows["status"] == "skipped") & (rows["reason"].astype(object) == NEEDLESS_REASON))]


def list_tests(rows: Frame) -> Iterator[LearningTest]:
    """Each task at each length, in order of appearance; named by part if several parts have the same."""
    parts = rows.groupby(["task", "seq_len"], dropna=False)["part"].transform("nunique") > 1
    for (task, part, length), test_rows in rows.groupby(["task", "part", "seq_len"], sort=False, dropna=False):
        part_text = f" ({part})" if units.is_present(part) and bool(parts[test_rows.index[0]]) else ""
        metrics = test_rows["metric"].dropna()
        metric = str(metrics.iloc[0]) if len(metrics) else ""
        results = (
            MechanismResult(str(label), variant_rows, metric == BITS_METRIC)
            for label, variant_rows in test_rows.groupby("label", sort=False)
        )
        yield LearningTest(f"{task}, length {int(length)}{part_text}", int(length), metric, tuple(results))


def order_labels(tests: Sequence[LearningTest]) -> list[str]:
    """Labels by mean rank over all tests with a ranking, best first."""
    ranks: dict[str, list[float]] = {result.label: [] for test in tests for result in test.results}
    for test in tests:
        for rank, result in enumerate(test.list_best_first()) if test.is_ranked else ():
            ranks[result.label].append(rank / len(test.scored_results))
    return sorted(ranks, key=lambda label: sum(ranks[label]) / len(ranks[label]) if ranks[label] else 1.0)
