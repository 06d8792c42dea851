"""The rule that ends training of all models alike: the score on validation has levelled off.

Scores of a few hundred examples vary by .01 to .03 from one validation to the next, more than the smallest improvement
that counts. So the rule compares the means of the last two quarters of the steps, and training goes on as long as noise
may hide an improvement: the best score so far, which is one of the luckiest, would end it too early.
"""

import itertools
import math
import statistics
from collections.abc import Sequence

SOLVED = "solved"  # why training ended before its score had levelled off
STILL_IMPROVING, NOT_LEARNED = "still improving after the most steps", "nothing learned in the most steps"
UPTRAINED = "a share of the original's steps"  # why further training ended
QUARTER = 0.25  # of the steps: the last two are compared
LEAST_SHARE = 0.25  # of the largest number of steps, before which no training ends: some tasks are learned suddenly
RELATIVE_GAIN, LEAST_GAIN = 0.01, 0.005  # improvements below 1% of the remaining error, or below .005, are none
CERTAINTY = 2  # standard errors of the difference of the means
LEARNED_SHARE = 0.02  # of the trivial error by which the error must be smaller, before training can have levelled off
REFERENCE_SHARE = 0.9  # of the final improvement, the time to which is reported


def compute_error(score: float, metric: str) -> float:
    """What a score lacks to the best possible one: bits themselves, or a share's difference from 1."""
    return score if metric == "bits" else 1 - score


def has_learned(scores: Sequence[tuple[int, float]], metric: str, trivial_score: float) -> bool:
    """Whether the best score is better than the trivial one. scores: pairs of a step and a score on validation."""
    trivial_error = compute_error(trivial_score, metric)
    best = min(compute_error(score, metric) for _, score in scores)
    return best < (1 - LEARNED_SHARE) * trivial_error


def has_levelled_off(
    scores: Sequence[tuple[int, float]], metric: str, trivial_score: float, most_steps: int, *, certainly: bool = True
) -> bool:
    """Whether the mean error has hardly fallen from the quarter before the last to the last quarter of the steps so
    far. certainly: even if it fell by two standard errors more. Never true of a model that has learned nothing, which
    may be about to."""
    step = scores[-1][0]
    errors = [compute_error(score, metric) for at, score in scores if at > (1 - 2 * QUARTER) * step]
    n_last = sum(at > (1 - QUARTER) * step for at, _ in scores)
    if step < LEAST_SHARE * most_steps or min(n_last, len(errors) - n_last) < 2:
        return False
    if not has_learned(scores, metric, trivial_score):
        return False
    before, now = statistics.fmean(errors[:-n_last]), statistics.fmean(errors[-n_last:])
    # from neighbours, whose differences hold the noise of both and little of a trend
    variance = statistics.fmean((x - y) ** 2 for x, y in itertools.pairwise(errors)) / 2
    error = math.sqrt(variance * (1 / n_last + 1 / (len(errors) - n_last)))
    return before - now + CERTAINTY * error * certainly < max(LEAST_GAIN, RELATIVE_GAIN * before)


def find_reference_step(scores: Sequence[tuple[int, float]], metric: str, trivial_score: float) -> int | None:
    """Index of the first validation with 90% of the final improvement over the trivial score; None without any."""
    if not scores:
        return None
    trivial_error = compute_error(trivial_score, metric)
    errors = [compute_error(score, metric) for _, score in scores]
    if errors[-1] >= trivial_error:
        return None
    limit = trivial_error - REFERENCE_SHARE * (trivial_error - errors[-1])
    return next(index for index, error in enumerate(errors) if error <= limit)
