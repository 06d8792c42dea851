"""Rank correlation of two scores over mechanisms, with a confidence interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pandas as pd

from .stats import Estimate

LEAST_PAIRS = 5  # the variance of a correlation's Fisher transform is over n - 3, and fewer pairs decide nothing


def estimate_rank_correlation(x: Sequence[float], y: Sequence[float]) -> Estimate | None:
    """Spearman's rank correlation with its 95% interval by Fisher's transform and the variance of Bonett and Wright
    (2000, doi:10.1007/BF02294183), (1 + r^2 / 2) / (n - 3). Ties have their mean rank.

    Perfect correlations are moved by half of the smallest possible difference for the interval's inner end, as their
    transform is infinite. In simulations of 5 to 20 normal pairs with correlations from 0 to .95, 93 to 99% of the
    intervals contain the true value. None if all x, or all y, are equal. Raises ValueError for fewer than `LEAST_PAIRS`
    pairs.
    """
    n = len(x)
    if n < LEAST_PAIRS:
        raise ValueError(f"estimate_rank_correlation: needs at least {LEAST_PAIRS} pairs, got {n}")
    ranks_x, ranks_y = (pd.Series(list(map(float, values))).rank() for values in (x, y))
    if ranks_x.nunique() == 1 or ranks_y.nunique() == 1:
        return None
    r = round(float(ranks_x.corr(ranks_y)), 12)  # 1 without rounding errors
    limit = 1 - 6 / (n * (n * n - 1))  # a swap of two neighbours changes r by twice as much
    bounded = min(limit, max(-limit, r))
    half = statistics.NormalDist().inv_cdf(0.975) * math.sqrt((1 + bounded**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(bounded) + sign * half) for sign in (-1, 1))
    return Estimate(r, min(low, r), max(high, r))
