"""Attempts: the learning rates and seeds with which a model is trained, in order.

The grid of rates is tried with the first seed, and extended by factors of two while the best on validation lies at an
end of it. Then the other seeds are trained with the selected rate, and two more if their scores disagree. Of mechanisms
whose rate a suite gives, only the seeds are trained. Models that are made from trained ones come last (`uptraining`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...errors import NotNeeded
from ...results.learning_rates import BOTH_ENDS, End, RateChoice, TriedRate, choose_rate
from ...results.rows import Row
from .plateau import NOT_LEARNED, SOLVED, compute_error
from .problem import Baselines, Conversion, LearnKeys, Problem

AttemptKind = Literal["grid", "above", "below", "given", "best", "more", "uptrain"]
RATE_FACTOR = 2.0  # between rates beyond the grid
MAX_EXTENSIONS = 3  # of the grid, either way
MAX_RATE = 0.5
MORE_SEEDS = 2  # if the others disagree
MAX_SPREAD = 0.05  # of the scores of seeds that agree
GIVEN_REASON = "the suite gives its learning rate"
GRID_REASON = "the suite gives no learning rate of"
QUICK_DIVISOR = 4  # of the steps in a quick run
CHANCE_MARGIN = 1.02  # computed scores up to this multiple of chance do not exceed it
CHANCE_ERRORS = 2.0  # standard errors by which a score must exceed chance


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """rate: None if earlier attempts or the suite determine it. index: of the seed. conversion, share: of uptraining,
    else None."""

    kind: AttemptKind
    rate: float | None = None
    index: int = 0
    conversion: Conversion | None = None
    share: float | None = None

    @property
    def label(self) -> str:
        """Its name in a row's ``inputs``."""
        rate = "" if self.rate is None else f"rate {self.rate:g}"
        share = "" if self.share is None else f"share {self.share:g}"
        return ", ".join(filter(None, (f"seed {self.index}", self.kind, rate, self.conversion, share)))

    @property
    def pairs(self) -> tuple[tuple[str, str | float | int | None], ...]:
        """Its fields in the keys of a group; the digests of other attempts have none of uptraining."""
        fields = vars(self).items()
        return tuple((name, x) for name, x in fields if x is not None or name not in ("conversion", "share"))


class AttemptSettings(NamedTuple):
    """The settings of an attempt. steps: at most; None for those of the keys."""

    rate: float
    steps: int | None = None


Earlier = Sequence[tuple[Attempt, Row]]  # attempts of the same mechanism, task and length, and their rows


def list_attempts(
    problem: Problem, keys: LearnKeys, *, quick: bool, variants: Sequence[str] | None = None
) -> Iterator[Attempt]:
    """All attempts that may be needed for these variants (None for any), in order. A quick run has one of each."""
    rates, known_rates = keys.learning_rates or problem.recipe.learning_rates, dict(keys.rates)
    needs_grid = not known_rates or variants is None or not set(variants) <= set(known_rates)
    if known_rates:
        yield Attempt(kind="given")
    if quick and needs_grid:
        yield Attempt(kind="grid", rate=rates[0])
    if quick:
        return
    if needs_grid:
        yield from (Attempt(kind="grid", rate=rate) for rate in rates)
        for n in range(1, MAX_EXTENSIONS + 1):
            if (above := max(rates) * RATE_FACTOR**n) < MAX_RATE:
                yield Attempt(kind="above", rate=above)
            yield Attempt(kind="below", rate=min(rates) / RATE_FACTOR**n)
    yield from (Attempt(kind="best", index=index) for index in range(1, keys.seeds))
    if keys.seeds > 1:
        yield from (Attempt(kind="more", index=index) for index in range(keys.seeds, keys.seeds + MORE_SEEDS))


def list_uptrainings(keys: LearnKeys, *, quick: bool) -> Iterator[Attempt]:
    """The attempts of each variant that start from a trained model of another one; a quick run has those of a seed."""
    for index in range(1 if quick else keys.seeds) if keys.uptrained_from else ():
        for share in keys.shares:
            for conversion in keys.conversions:
                yield Attempt(kind="uptrain", index=index, conversion=conversion, share=share)


def resolve_attempt(
    attempt: Attempt,
    earlier: Earlier,
    problem: Problem,
    keys: LearnKeys,
    variant: str,
    *,
    baselines: Baselines,
    reach_score: float | None,
) -> AttemptSettings:
    """The settings of an attempt after the earlier ones. reach_score: the best score of a model with the mechanism's
    reach, if limited. Raises `NotNeeded` if it would give no new information."""
    given_rate = dict(keys.rates).get(variant)
    if attempt.kind == "given":
        if given_rate is None:
            raise NotNeeded(f"{GRID_REASON} {variant}")
        return AttemptSettings(given_rate)
    if attempt.rate is not None and given_rate is not None:
        raise NotNeeded(GIVEN_REASON)
    if attempt.kind == "grid":
        assert attempt.rate is not None
        return AttemptSettings(attempt.rate)
    first_seed = [(other, row) for other, row in earlier if other.index == 0]
    choice = _choose_rate(first_seed, problem, given_rate)
    if choice is None:
        raise NotNeeded("no training with the first seed came to an end")
    if attempt.rate is not None:
        open_ends = _list_open_ends(first_seed, choice, problem, baselines, reach_score)
        if attempt.kind not in open_ends:
            raise NotNeeded("the best learning rate lies within the grid")
        return AttemptSettings(attempt.rate)
    selected = [row for other, row in earlier if row.status == "ok" and _has_rate(row, choice.rate)]
    if keys.seeds_between is not None:
        low, high = keys.seeds_between
        score = selected[0].extra["train.validation"]
        if score is None or not low < float(score) < high:
            raise NotNeeded(f"the first seed's score is not between {low:g} and {high:g}")
    scores = [float(row.extra["train.score"]) for row in selected if row.extra["train.score"] is not None]
    if attempt.kind == "more" and (len(scores) < 2 or max(scores) - min(scores) <= MAX_SPREAD):
        raise NotNeeded(f"the scores of all seeds are within {MAX_SPREAD:g}")
    return AttemptSettings(choice.rate, int(selected[0].extra["train.budget"] or 0))


def find_selected_row(earlier: Earlier, index: int, problem: Problem, keys: LearnKeys, variant: str) -> Row | None:
    """The row of a seed's training with the selected rate; None if it did not come to an end."""
    first_seed = [(other, row) for other, row in earlier if other.index == 0]
    choice = _choose_rate(first_seed, problem, dict(keys.rates).get(variant))
    rows = [row for other, row in earlier if other.index == index and row.status == "ok"]
    return next((row for row in rows if choice is not None and _has_rate(row, choice.rate)), None)


def list_tried(earlier: Earlier, problem: Problem) -> list[TriedRate]:
    """The tried rates with their scores on validation, higher is better."""
    tried = []
    for attempt, row in earlier:
        if attempt.rate is None or row.status == "skipped":
            continue
        score = row.extra.get("train.validation") if row.status == "ok" else None
        error = row.extra.get("train.validation_error") if row.status == "ok" else None
        flipped = None if score is None else -compute_error(float(score), problem.metric)
        if row.stop_reason == SOLVED:
            flipped = 0.0  # rates at which training ended because the score was perfect are ties
        tried.append(TriedRate(attempt.rate, flipped, float(error or 0.0)))
    return tried


def _choose_rate(first_seed: Earlier, problem: Problem, given_rate: float | None) -> RateChoice | None:
    if given_rate is None:
        return choose_rate(list_tried(first_seed, problem))
    rates = [float(row.extra["train.learning_rate"] or 0.0) for _, row in first_seed if row.status == "ok"]
    return RateChoice(rates[0]) if rates else None


def _has_rate(row: Row, rate: float) -> bool:
    return math.isclose(float(row.extra["train.learning_rate"] or 0.0), rate)


def _list_open_ends(
    first_seed: Earlier, choice: RateChoice, problem: Problem, baselines: Baselines, reach_score: float | None
) -> tuple[End, ...]:
    """The ends of the grid beyond which further rates are tried: both if nothing was learned with any."""
    trained = [row for _, row in first_seed if row.status == "ok"]
    if any(row.stop_reason != NOT_LEARNED and not is_at_chance(row, problem, baselines) for row in trained):
        return choice.open_ends
    if reach_score is not None and reach_score <= CHANCE_MARGIN * baselines.chance:
        raise NotNeeded("no model that sees so few keys does better than chance: computed, not trained")
    return BOTH_ENDS


def get_trivial_score(problem: Problem, baselines: Baselines) -> float:
    """The score of a model that has learned nothing but the frequencies of answers."""
    if problem.metric == "bits":
        return min(baselines.chance, baselines.majority)
    return max(baselines.chance, baselines.majority)


def is_at_chance(row: Row, problem: Problem, baselines: Baselines) -> bool:
    """Whether a score on validation does not significantly exceed the trivial one."""
    score, error = row.extra["train.validation"], row.extra["train.validation_error"]
    if score is None:
        return True
    margin = CHANCE_ERRORS * float(error or 0.0)
    limit = get_trivial_score(problem, baselines)
    return float(score) + margin >= limit if problem.metric == "bits" else float(score) - margin <= limit
