"""Statistics of repeated measurements: means with intervals, paired ratios, verdicts, growth exponents."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

RatioVerdict = Literal["faster", "slower", "same", "inconclusive"]
MARGIN = 0.02  # differences below 2% are ignored
BOOTSTRAP_DRAWS = 10_000
MIN_TRIMMED = 10  # values, of which a trimmed mean is estimated


class Estimate(NamedTuple):
    """A value with its confidence interval; low and high are None if a single measurement gives none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float:
        """Half the interval's width relative to the value; infinite where there is no interval."""
        if self.low is None or self.high is None:
            return math.inf
        return (self.high - self.low) / 2 / self.value

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval, or the value itself where there is none."""
        return self.value if self.low is None else self.low, self.value if self.high is None else self.high

    def exp(self) -> Estimate:
        """The estimate of the value whose logarithm this is."""
        ends = (end if end is None else math.exp(end) for end in (self.low, self.high))
        return Estimate(math.exp(self.value), *ends)


class Mean(NamedTuple):
    """A mean with its standard error and degrees of freedom; 0 degrees: the error is unknown."""

    value: float
    error: float
    degrees: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """The interval by Student's t; None without degrees of freedom."""
        if self.degrees < 1:
            return None
        half = t_quantile(0.5 + confidence / 2, self.degrees) * self.error
        return self.value - half, self.value + half

    @property
    def p_value(self) -> float:
        """The two-sided p-value of the mean against 0."""
        if self.degrees < 1 or self.value == self.error == 0:
            return 1.0
        if self.error == 0:
            return 0.0
        return 2 * t_cdf(-abs(self.value) / self.error, self.degrees)


def estimate_mean(values: Sequence[float], groups: Sequence[int] | None = None) -> Mean:
    """The mean of one value for each round, and its error. groups: the process that measured each round.

    Load by other programs changes over seconds, so that rounds of one process are more similar than rounds of different
    ones. If the data show that, the error is that of the processes' means, with their degrees of freedom.
    """
    n = len(values)  # rarely above a hundred, for which numpy takes several times as long
    if not n:
        return Mean(math.nan, math.inf, 0)
    center = math.fsum(values) / n
    if n < 2:
        return Mean(center, math.inf, 0)
    squares = math.fsum([(value - center) ** 2 for value in values])
    overall = Mean(center, math.sqrt(squares / (n - 1) / n), n - 1)
    parts = defaultdict[int, list[float]](list)
    for value, group in zip(values, groups, strict=True) if groups else ():
        parts[group].append(value)
    if len(parts) < 3 or len(parts) == n:
        return overall
    explained = math.fsum([len(part) * (math.fsum(part) / len(part) - center) ** 2 for part in parts.values()])
    between, within = explained / (len(parts) - 1), (squares - explained) / (n - len(parts))
    return Mean(center, math.sqrt(between / n), len(parts) - 1) if between > within else overall


def estimate_trimmed_mean(values: Sequence[float]) -> Mean:
    """The mean without a fifth of the values at each end, with its error from winsorized values (Yuen, 1974).

    A few values that are far off, as of disturbed measurements, hardly widen its interval. Of fewer than
    `MIN_TRIMMED` values it is the usual mean.
    """
    x = np.sort(np.asarray(values, dtype=float))
    cut = len(x) // 5 if len(x) >= MIN_TRIMMED else 0
    middle = x[cut : len(x) - cut]
    if len(middle) < 2:
        return Mean(float(x.mean()), math.inf, 0)
    squares = float(x.clip(middle[0], middle[-1]).var()) * len(x)
    return Mean(float(middle.mean()), math.sqrt(squares / (len(middle) * (len(middle) - 1))), len(middle) - 1)


def estimate_geometric_mean(
    values: Sequence[float], groups: Sequence[int] | None = None, *, confidence: float = 0.95
) -> Estimate:
    """The geometric mean of positive values (one for each round), with Student's t-interval over their logarithms.

    Disturbances multiply a time, hence logarithms. Raises ValueError for no values, or values that are not positive.
    """
    if not len(values) or min(values) <= 0:
        raise ValueError("estimate_geometric_mean: needs positive values")
    mean = estimate_mean([math.log(v) for v in values], groups)
    return Estimate(mean.value, *(mean.interval(confidence) or ())).exp()


def estimate_paired_ratio(
    numerator: Sequence[float],
    denominator: Sequence[float],
    groups: Sequence[int] | None = None,
    *,
    confidence: float = 0.95,
) -> Estimate:
    """The ratio of two series measured in the same rounds, with its interval.

    Pairing cancels disturbances of a whole round. Rounds that only one series has are ignored.
    """
    ratios = [a / b for a, b in zip(numerator, denominator, strict=False)]
    return estimate_geometric_mean(ratios, None if groups is None else groups[: len(ratios)], confidence=confidence)


def classify_ratio(low: float, high: float, *, margin: float = MARGIN, tolerance: float | None = None) -> RatioVerdict:
    """The verdict from an interval of the ratio old / new time: above 1 the new one is faster.

    A difference requires that the interval excludes 1 and its center lies beyond the margin; ``same`` that the whole
    interval lies within the tolerance, or the margin if there is none. Noise widens the interval and makes a verdict
    inconclusive, not wrong.
    """
    low, high = math.log(low), math.log(high)
    if (low > 0 or high < 0) and abs(low + high) / 2 > math.log1p(margin):
        return "faster" if low > 0 else "slower"
    limit = math.log1p(margin if tolerance is None else tolerance)
    return "same" if -limit <= low and high <= limit else "inconclusive"


def estimate_share(hits: int, count: int) -> Estimate:
    """The share of hits among independent trials, with Wilson's 95% interval (1927), which is valid for few trials
    and for shares of 0 and 1. Raises ValueError without trials."""
    if not count:
        raise ValueError("estimate_share: needs at least one trial")
    z = statistics.NormalDist().inv_cdf(0.975)
    share, shrink = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / shrink
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / shrink
    # without rounding errors the interval contains the share, and lies in [0, 1]
    return Estimate(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


def estimate_grouped_share(groups: Sequence[Sequence[bool]]) -> Estimate:
    """The share of hits in groups of trials, with a 95% interval for trials of one group that resemble each other.

    The interval is the percentile bootstrap's over groups (Efron, 1979), and is at least as wide as Wilson's over
    trials, which is valid where all groups agree. Raises ValueError without trials.
    """
    hits, sizes = np.array([sum(group) for group in groups]), np.array([len(group) for group in groups])
    share = estimate_share(int(hits.sum()), int(sizes.sum()))
    draws = np.random.default_rng(0).integers(len(groups), size=(BOOTSTRAP_DRAWS, len(groups)))
    low, high = np.quantile(hits[draws].sum(1) / sizes[draws].sum(1), (0.025, 0.975))
    assert share.low is not None
    assert share.high is not None
    return Estimate(share.value, min(share.low, float(low)), max(share.high, float(high)))


def adjust_holm(p_values: Sequence[float], risk: float) -> list[float]:
    """The risk at which Holm's procedure tests each of several hypotheses for a family-wise error rate of ``risk``.

    The smallest p-value is compared with risk / m, the next with risk / (m - 1), until one exceeds its limit; that one
    and all larger ones are tested at risk / m, so that their intervals are valid simultaneously.
    """
    count = len(p_values)
    adjusted = [risk / max(1, count)] * count
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        if p_values[index] > risk / (count - rank):
            break
        adjusted[index] = risk / (count - rank)
    return adjusted


def estimate_exponent(lengths: Sequence[float], values: Sequence[float]) -> Estimate:
    """The slope of log(values) over log(lengths): 1 for linear growth, 2 for quadratic. Least squares, t-interval."""
    x, y = np.log(np.asarray(lengths, dtype=float)), np.log(np.asarray(values, dtype=float))
    if len(x) < 2 or np.ptp(x) == 0:
        raise ValueError("estimate_exponent: needs at least two different lengths")
    return fit_least_squares(np.column_stack([np.ones_like(x), x - x.mean()]), y)[1]


def fit_least_squares(x: np.ndarray, y: np.ndarray) -> list[Estimate]:
    """The coefficients of the columns of x, with 95% t-intervals if there are residual degrees of freedom."""
    inverse = np.linalg.inv(x.T @ x)
    coefficients = inverse @ x.T @ y
    degrees = len(y) - x.shape[1]
    if degrees < 1:
        return [Estimate(value) for value in coefficients.tolist()]
    residual = y - x @ coefficients
    errors = np.sqrt(np.diag(inverse) * float(residual @ residual) / degrees)
    half_widths = (t_quantile(0.975, degrees) * errors).tolist()
    return [Estimate(value, value - h, value + h) for value, h in zip(coefficients.tolist(), half_widths, strict=True)]


def median(values: Sequence[float]) -> float:
    """The median; of an even number of values the upper one, so that it is a measured value."""
    return statistics.median_high(values)


def t_cdf(value: float, degrees: float) -> float:
    """The cumulative distribution function of Student's t-distribution."""
    from scipy.special import stdtr  # importing scipy.stats would take most of a second

    return float(stdtr(degrees, value))


def t_quantile(share: float, degrees: float) -> float:
    """The quantile of Student's t-distribution."""
    from scipy.special import stdtrit  # importing scipy.stats would take most of a second

    return float(stdtrit(degrees, share))
