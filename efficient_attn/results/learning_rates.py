"""Learning rates: which of the tried ones is selected, and at which ends of the grid the best may still lie outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

End = Literal["above", "below"]
BOTH_ENDS: tuple[End, End] = ("above", "below")


class TriedRate(NamedTuple):
    """A learning rate that was tried. score: on validation, higher is better; None if training failed, as with a loss
    that is not finite. error: standard error of the score."""

    rate: float
    score: float | None
    error: float = 0.0


class RateChoice(NamedTuple):
    """The selected rate, and the ends of the grid beyond which a better one may lie; none if it is inside."""

    rate: float
    open_ends: tuple[End, ...] = ()


def choose_rate(tried: Sequence[TriedRate]) -> RateChoice | None:
    """Select by validation; None if no training came to an end.

    Rates whose scores differ from the best by at most one standard error (the larger of the two) are ties. A tie that
    is neither the smallest nor the largest tried rate is preferred, which closes the grid; without such a tie, the ends
    at which there are ties are open.
    """
    scored = [(x.score, x) for x in tried if x.score is not None]
    if not scored:
        return None
    best_score, best = max(scored, key=lambda pair: pair[0])
    ties = [(score, x.rate) for score, x in scored if best_score - score <= max(best.error, x.error)]
    rates = [x.rate for x in tried]
    if inner := [(score, rate) for score, rate in ties if min(rates) < rate < max(rates)]:
        return RateChoice(max(inner)[1])
    tied_rates = {rate for _, rate in ties}
    limits: dict[End, float] = {"above": max(rates), "below": min(rates)}
    return RateChoice(best.rate, tuple(end for end in BOTH_ENDS if limits[end] in tied_rates))
