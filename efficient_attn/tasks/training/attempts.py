"""Attempts: the learning rates, steps and seeds with which a model is trained, in order.

First the grid of rates is tried with the first seed. If none exceeds chance, two rates beyond the grid are tried, and
the best of all with twice the steps. Then the other seeds are trained with the best.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...errors import NotNeeded
from ...results.rows import Row
from ...results.stats import estimate_share
from .problem import Baselines, LearnKeys, Problem

AttemptKind = Literal["grid", "beyond", "longer", "best"]
RATE_FACTOR = 4.0  # of the rates beyond the grid to its largest and smallest
STEPS_FACTOR = 2  # of a longer attempt
QUICK_DIVISOR = 4  # of the steps in a quick run
CHANCE_MARGIN = 1.02  # computed scores up to this multiple of chance do not exceed it


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """rate: None if earlier attempts determine it. index: of the seed."""

    kind: AttemptKind
    rate: float | None = None
    index: int = 0

    @property
    def label(self) -> str:
        """Its name in a row's ``inputs``."""
        rate = "" if self.rate is None else f"rate {self.rate:g}"
        return ", ".join(filter(None, (f"seed {self.index}", self.kind, rate)))


class AttemptSettings(NamedTuple):
    """The settings of an attempt. steps: None for those of the keys."""

    rate: float
    steps: int | None = None


def list_attempts(problem: Problem, keys: LearnKeys, *, quick: bool) -> Iterator[Attempt]:
    """All attempts that may be needed, in order. A quick run has one."""
    rates = keys.learning_rates or problem.recipe.learning_rates
    if quick:
        yield Attempt(kind="grid", rate=rates[0])
        return
    yield from (Attempt(kind="grid", rate=rate) for rate in rates)
    beyond = min(0.1, RATE_FACTOR * max(rates)), min(rates) / RATE_FACTOR
    yield from (Attempt(kind="beyond", rate=rate) for rate in beyond)
    yield Attempt(kind="longer")
    yield from (Attempt(kind="best", index=index) for index in range(1, keys.seeds))


def resolve_attempt(
    attempt: Attempt, earlier: Sequence[Row], problem: Problem, baselines: Baselines, reach_score: float | None
) -> AttemptSettings:
    """The settings of an attempt after the earlier ones of its mechanism, task and length. reach_score: the best score
    of a model with the mechanism's reach, if limited. Raises `NotNeeded` if it would give no new information."""
    if attempt.kind == "grid":
        assert attempt.rate is not None
        return AttemptSettings(attempt.rate)
    completed = [row for row in earlier if row.status == "ok" and row.extra["train.attempt"] != "best"]
    validated = [row for row in completed if row.extra["train.validation"] is not None]
    if not validated:
        raise NotNeeded("no rate of the grid came to an end")
    choose = min if problem.metric == "bits" else max
    best = choose(validated, key=lambda row: float(row.extra["train.validation"] or 0.0))
    rate, steps = float(best.extra["train.learning_rate"] or 0.0), int(best.extra["train.budget"] or 0)
    if attempt.kind == "best":
        return AttemptSettings(rate, steps)
    if any(not is_at_chance(row, problem, baselines) for row in validated):
        raise NotNeeded("more than chance was learned within the grid")
    if reach_score is not None and reach_score <= CHANCE_MARGIN * baselines.chance:
        raise NotNeeded("no model that sees so few keys does better than chance: computed, not trained")
    return AttemptSettings(attempt.rate) if attempt.rate else AttemptSettings(rate, STEPS_FACTOR * steps)


def is_at_chance(row: Row, problem: Problem, baselines: Baselines) -> bool:
    """Whether a score does not significantly exceed that of the most frequent answer."""
    if row.extra["train.score"] is None:
        return True
    score, trivial_score = float(row.extra["train.score"]), max(baselines.chance, baselines.majority)
    if problem.metric == "bits":
        return score >= min(baselines.chance, baselines.majority)
    if problem.metric == "explained":
        return score <= trivial_score
    count = int(row.extra["train.examples"] or 1)
    return (estimate_share(round(score * count), count).low or 0.0) <= trivial_score
