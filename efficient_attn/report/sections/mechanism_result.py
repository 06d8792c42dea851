"""The result of a mechanism in a trained task: the rows that count, its score, and why it is not ranked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ... import units
from ...results.learning_rates import RateChoice, TriedRate, choose_rate
from ...results.stats import Estimate, estimate_mean
from .. import formatting
from ..gather import Frame
from ..tables import ReportCell

REACH_SHORTCUT = "all that lies within reach of its keys"  # of earlier rows, in which the reach of pairs is too large
COMPUTED_REASON = "computed, not trained"  # the task is out of the mechanism's reach
SOLVED = "solved"
STILL_IMPROVING = "still improving after the most steps"  # why training ended
NOT_LEVELLED_OFF = {  # by why training ended; the last is of older rows
    STILL_IMPROVING: "still improving",
    "the budget of steps": "stopped after a fixed number of steps",
}
ATTEMPT_STATUSES = "ok", "invalid"  # a NaN loss is an attempt too
FURTHER_SEEDS = "best", "more", "given"  # attempts at the selected rate, or at that of the suite
EXTRA_ATTEMPTS = {"above", "below"}, {"beyond", "longer"}  # required before a task counts as not learned; older rows
FULL_REACH = 0.999  # a larger reach is no limitation
MAX_SPREAD = 0.05  # runs that differ by more are shown one by one, because a mean would hide that


class AttemptLabel(NamedTuple):
    """An attempt as its row's inputs name it."""

    seed: int
    kind: str
    rate: float | None

    @classmethod
    def parse(cls, inputs: Any) -> AttemptLabel:
        """``seed 0, grid, rate 0.002``."""
        parts = [*(part.strip() for part in str(inputs).split(",")), "", ""]
        rate = parts[2].removeprefix("rate ")
        return cls(int(parts[0].removeprefix("seed ") or 0), parts[1], float(rate) if rate else None)


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
        best = attempts[attempts["train.attempt"].isin(FURTHER_SEEDS)]
        if best.empty:
            options: Any = {"kind": "stable", "na_position": "first"}
            best = attempts.sort_values("train.validation", ascending=not self.in_bits, **options)
            if (
                self.rate_choice is not None
                and (at_rate := best[best["train.learning_rate"] == self.rate_choice.rate]).size
            ):
                best = at_rate
        for name in ("train.learning_rate", "train.budget"):
            attempts = attempts[attempts[name] == best[name].iloc[-1]]
        return attempts.drop_duplicates("seed", keep="last").sort_values("seed")

    @cached_property
    def tried_rates(self) -> list[TriedRate]:
        """The learning rates that were tried with the first seed; of those tried twice, the last."""
        tried: dict[float, TriedRate] = {}
        for row in self.rows[self.rows["status"].isin(ATTEMPT_STATUSES)].to_dict("records"):
            label = AttemptLabel.parse(row["inputs"])
            rate = row["train.learning_rate"] if units.is_present(row["train.learning_rate"]) else label.rate
            if label.kind in FURTHER_SEEDS or rate is None:
                continue
            score, error = row["train.validation"], row.get("train.validation_error")
            flipped = None if not units.is_present(score) else -score if self.in_bits else score
            if row["stop_reason"] == SOLVED:
                flipped = 0.0 if self.in_bits else 1.0  # as the trainer selects
            tried[rate] = TriedRate(rate, flipped, error if units.is_present(error) else 0.0)
        return list(tried.values())

    @cached_property
    def rate_choice(self) -> RateChoice | None:
        """The learning rate that validation selects; None if the suite gave it."""
        return choose_rate(self.tried_rates)

    @property
    def unranked_reason(self) -> str:
        """Why its score is not compared with those of others; empty if it is."""
        if self.score is None or self.at_chance:
            return ""
        for stop_reason, text in NOT_LEVELLED_OFF.items():
            if (self.best_attempts["stop_reason"] == stop_reason).any():
                return text
        return "rate at the edge" if self.rate_choice is not None and self.rate_choice.open_ends else ""

    @property
    def is_final(self) -> bool:
        """Whether it has a score that is compared with those of others, or did not learn the task by any attempt."""
        is_early = self.score is None or (self.at_chance and not self.all_attempts_made)
        return not is_early and not self.unranked_reason

    @cached_property
    def seed_scores(self) -> list[float]:
        """The score of each seed."""
        return self.best_attempts["train.score"].astype(float).tolist()

    @property
    def seeds_disagree(self) -> bool:
        """Whether the scores of seeds differ so much that a mean would be misleading."""
        return max(self.seed_scores) - min(self.seed_scores) > MAX_SPREAD

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
        """Kinds of the attempts with the first seed."""
        attempts = self.rows[self.rows["status"].isin(ATTEMPT_STATUSES)]
        labels = map(AttemptLabel.parse, attempts["inputs"])
        return [label.kind for label in labels if label.kind not in ("best", "more")]

    @property
    def out_of_reach(self) -> bool:
        """Whether a model with this reach is at chance by computation."""
        return bool(self.rows["reason"].astype(object).fillna("").str.contains(COMPUTED_REASON, regex=False).any())

    @property
    def all_attempts_made(self) -> bool:
        """Whether all attempts were made that are required to report a task as not learned."""
        return self.out_of_reach or any(set(self.attempt_kinds) >= kinds for kinds in EXTRA_ATTEMPTS)

    @property
    def reach(self) -> float | None:
        """The score of correct answers within the mechanism's reach, if the distances of answers are known."""
        if self.scored_attempts.empty:
            return None
        reach = self.best_attempts.iloc[-1].get("train.reach")
        return float(reach) if units.is_present(reach) else None

    @property
    def shortcut(self) -> tuple[float, str] | None:
        """Score and description of the task's best shortcut; None if it has none."""
        score, description = self.best_attempts[["train.shortcut", "train.way"]].iloc[-1]
        if not units.is_present(score) or description == REACH_SHORTCUT:
            return None
        return float(score), str(description) if units.is_present(description) else ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the score over seeds, or over examples for a single seed, if these are counted."""
        ends: Any = (None, None) if self.score is None else self.score[1:]
        if self.score is not None and self.score.low is None:
            ends = [self.best_attempts.iloc[-1].get(f"train.{end}") for end in ("low", "high")]
        return (float(ends[0]), float(ends[1])) if all(map(units.is_present, ends)) else None

    def beats(self, bound: float) -> bool:
        """Whether the score is significantly better than a computed one. Without an interval, whether it is better."""
        if self.score is None:
            return False
        low, high = self.interval or (self.score.value, self.score.value)
        return high < bound if self.in_bits else low > bound

    @property
    def at_shortcut(self) -> bool:
        """Whether it is better than chance, but not significantly better than the task's best shortcut."""
        return not self.at_chance and self.shortcut is not None and not self.beats(self.shortcut[0])

    @property
    def learned_within_reach(self) -> bool:
        """Whether the interval contains the score of correct answers within reach."""
        reach, interval = self.reach, self.interval
        if reach is None or interval is None or reach >= FULL_REACH or self.at_chance:
            return False
        return interval[0] <= reach <= interval[1]

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
        reason = f", {self.unranked_reason}" if self.unranked_reason else ""
        return self._format_score(score) + reason

    def _format_score(self, score: Estimate) -> str:
        count = formatting.format_count(len(self.best_attempts), "seed")
        if len(self.seed_scores) > 1 and self.seeds_disagree:
            return f"{', '.join(map(self._format_value, sorted(self.seed_scores)))} (each of {count})"
        if score.low is None or score.high is None:
            return f"{self._format_value(score.value)} ({count})"
        # an interval that contains its mean also as it is rounded
        ends = (self._format_value(end).removesuffix("%") for end in (score.low, score.high))
        return f"{self._format_value(score.value)} ({units.INTERVAL_DASH.join(ends)})"

    def _format_value(self, value: float) -> str:
        return units.number(value) if self.in_bits else units.percent(value)


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
