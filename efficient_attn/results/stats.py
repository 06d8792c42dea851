"""What may be said of repeated measurements: means with intervals, paired ratios, growth exponents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A value with its confidence interval; both ends None where one measurement cannot give any."""

    value: float
    low: float | None = None
    high: float | None = None


def typical(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The geometric mean of positive values (one a round), with Student's t-interval over their logarithms.

    Logarithms, because what disturbs a timing multiplies it. Raises ValueError for none, or for values not positive.
    """
    if not values or min(values) <= 0:
        raise ValueError("typical: needs positive values")
    logs = np.log(np.asarray(values, dtype=float))
    center = float(logs.mean())
    if len(logs) < 2:
        return Estimate(math.exp(center))
    half = _t(confidence, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Estimate(math.exp(center), math.exp(center - half), math.exp(center + half))


def paired_ratio(top: Sequence[float], bottom: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The ratio top / bottom of two series measured side by side, round by round, with its interval.

    Pairing takes out whatever slowed a whole round. Rounds that only one series has are left out.
    """
    return typical([a / b for a, b in zip(top, bottom, strict=False)], confidence=confidence)


def exponent(lengths: Sequence[float], values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The slope of log(values) over log(lengths): 1 for linear growth, 2 for quadratic. Least squares, t-interval."""
    x, y = np.log(np.asarray(lengths, dtype=float)), np.log(np.asarray(values, dtype=float))
    if len(x) < 2 or np.ptp(x) == 0:
        raise ValueError("exponent: needs at least two different lengths")
    dx = x - x.mean()
    slope = float((dx * y).sum() / (dx**2).sum())
    if len(x) < 3:
        return Estimate(slope)
    residual = y - y.mean() - slope * dx
    half = _t(confidence, len(x) - 2) * math.sqrt(float((residual**2).sum()) / (len(x) - 2) / float((dx**2).sum()))
    return Estimate(slope, slope - half, slope + half)


def _t(confidence: float, degrees: int) -> float:
    from scipy.special import stdtrit  # scipy.stats would take most of a second to import

    return float(stdtrit(degrees, 0.5 + confidence / 2))
