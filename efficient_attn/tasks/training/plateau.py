"""The rule that ends training of all models alike: the score on validation has levelled off."""

from collections.abc import Sequence

SOLVED = "solved"  # why training ended before its score had levelled off
STILL_IMPROVING, NOT_LEARNED = "still improving after the most steps", "nothing learned in the most steps"
UPTRAINED = "a share of the original's steps"  # why further training ended
LAST_SHARE = 0.25  # the last part of the steps, over which the improvement is measured
LEAST_SHARE = 0.25  # of the largest number of steps, before which no training ends: some tasks are learned suddenly
RELATIVE_GAIN, LEAST_GAIN = 0.01, 0.005  # improvements below 1% of the remaining error, or below .005, are none
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


def has_levelled_off(scores: Sequence[tuple[int, float]], metric: str, trivial_score: float, most_steps: int) -> bool:
    """Whether the best score has hardly improved over the last quarter of the steps so far. Never true of a model that
    has learned nothing, which may be about to."""
    step = scores[-1][0]
    earlier = [compute_error(score, metric) for at, score in scores if at <= (1 - LAST_SHARE) * step]
    if step < LEAST_SHARE * most_steps or not earlier or not has_learned(scores, metric, trivial_score):
        return False
    before, now = min(earlier), min(compute_error(score, metric) for _, score in scores)
    return before - now < max(LEAST_GAIN, RELATIVE_GAIN * before)


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
