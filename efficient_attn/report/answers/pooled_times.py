"""Pool the times of one length over several benchmark groups.

Rows of a group were timed interleaved, so that drift of the machine cancels in their ratios; groups differ by that
drift. A time is modeled as a mechanism's effect times a group's effect times noise, fitted by generalized least squares
on logarithms. Mechanisms timed in two groups connect these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ...results.compare import DRIFT
from ...results.stats import Estimate

GROUP_SPREAD = 0.05  # standard deviation of log time of one case between groups on one machine, over the published runs
Z_95 = 1.96  # of a 95% interval; those of rows already account for few degrees of freedom
MIN_ERROR = 0.003  # lower limit of a row's standard error
BASELINE_ERROR = 1e-6  # of a row whose error is part of the other rows' ratios to it


@dataclass(frozen=True)
class Timing:
    """A row's time. log_ms: its logarithm, from the ratio to the baseline of its group if they were paired. error: its
    standard error relative to the other rows of its group; 0 for the baseline of ratios."""

    name: Hashable
    group: Hashable
    log_ms: float
    error: float


@dataclass(frozen=True)
class PooledTimes:
    """Log times of mechanisms at one length, with covariances. reference_names: mechanisms of the largest group."""

    names: tuple[Hashable, ...]
    means: np.ndarray
    covariance: np.ndarray
    reference_names: frozenset[Hashable]

    def standard_error(self, name: Hashable) -> float:
        """Standard error of a log time relative to those of the largest group, whose drift they share."""
        variances = dict(zip(self.names, self.covariance[self.names.index(name)], strict=True))
        shared = max((x for other, x in variances.items() if other in self.reference_names - {name}), default=0.0)
        return math.sqrt(max(0.0, variances[name] - shared))

    def time(self, name: Hashable) -> Estimate:
        """A mechanism's time in milliseconds."""
        index = self.names.index(name)
        return _make_estimate(self.means[index], self.covariance[index, index])

    def speedup(self, base: Hashable, name: Hashable) -> Estimate | None:
        """The base's time over the mechanism's; None if the base was not timed at this length."""
        if base not in self.names:
            return None
        a, b = self.names.index(base), self.names.index(name)
        c = self.covariance
        return _make_estimate(self.means[a] - self.means[b], c[a, a] + c[b, b] - 2 * c[a, b])


def _make_estimate(mean: float, variance: float) -> Estimate:
    half = Z_95 * math.sqrt(max(0.0, variance))
    return Estimate(mean, mean - half, mean + half).exp()


def estimate_log_error(low: float | None, high: float | None) -> float | None:
    """Standard error of a logarithm from its 95% interval; None without an interval."""
    if low is None or high is None or not 0 < low <= high:
        return None
    return math.log(high / low) / 2 / Z_95


def pool_times(timings: Sequence[Timing]) -> PooledTimes:
    """Pool the timings of one configuration and length. Timings outside the largest group get the drift of ratios
    between groups as additional noise. The error of a mechanism that varies more between groups than modeled is
    widened."""
    names = tuple(dict.fromkeys(timing.name for timing in timings))
    group_sizes = Counter(timing.group for timing in timings)
    reference_group = max(reversed(group_sizes), key=group_sizes.__getitem__)  # of equally large ones the latest
    mechanism_numbers = {name: number for number, name in enumerate(names)}
    group_numbers = {group: number for number, group in enumerate(group_sizes)}
    group_of = np.array([group_numbers[timing.group] for timing in timings])
    mechanism_matrix = np.zeros((len(timings), len(names)))
    mechanism_matrix[np.arange(len(timings)), [mechanism_numbers[timing.name] for timing in timings]] = 1
    noise = np.array([max(MIN_ERROR, x.error) if x.error else BASELINE_ERROR for x in timings]) ** 2
    noise += [0.0 if timing.group == reference_group else 2 * DRIFT**2 for timing in timings]
    times = np.array([timing.log_ms for timing in timings])
    weighted = _apply_inverse(mechanism_matrix, noise, group_of)
    covariance = np.linalg.inv(mechanism_matrix.T @ weighted)
    means = covariance @ weighted.T @ times
    residuals = times - mechanism_matrix @ means
    effects = GROUP_SPREAD**2 * _sum_groups(_apply_inverse(residuals[:, None], noise, group_of), group_of)
    residuals -= effects[group_of, 0]  # without the group's effect
    counts = mechanism_matrix.sum(axis=0)
    spread = np.sqrt(np.maximum(1.0, np.where(counts > 1, mechanism_matrix.T @ (residuals**2 / noise) / counts, 1.0)))
    reference_names = frozenset(timing.name for timing in timings if timing.group == reference_group)
    return PooledTimes(names, means, covariance * np.outer(spread, spread), reference_names)


def _apply_inverse(x: np.ndarray, noise: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The inverse of the timings' covariance times a matrix with a row for each: noise, and an effect that the timings
    of a group share (Sherman and Morrison's formula for each group)."""
    weighted = x / noise[:, None]
    weights = _sum_groups(1 / noise[:, None], group_of)
    shared = _sum_groups(weighted, group_of) / (1 / GROUP_SPREAD**2 + weights)
    return weighted - shared[group_of] / noise[:, None]


def _sum_groups(x: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """The sum of the rows of each group."""
    sums = np.zeros((group_of.max() + 1, x.shape[1]))
    np.add.at(sums, group_of, x)
    return sums
