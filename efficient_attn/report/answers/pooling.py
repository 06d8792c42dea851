"""Times of one length out of several cells: what each mechanism takes, on one scale.

Rows of a cell were timed side by side, so that their ratios hold whatever the machine did that hour; times of different
cells differ by their hours. So a time is a mechanism's own, times its cell's, times noise. All are found together, by
generalised least squares on logarithms: who was timed in two cells ties these to each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ...results.compare import DRIFT
from ...results.stats import Estimate

HOURS = 0.05  # standard deviation between one machine's times of one case in two cells, over the published runs
QUANTILE = 1.96  # of a 95% interval: rows' own come with their few degrees of freedom in them
LEAST = 0.003  # no row is taken to be more exact


@dataclass(frozen=True)
class Timing:
    """A row's time. log_ms: its logarithm, by the ratio to its cell's baseline where it was paired with that. error:
    its standard error beside the other rows of its cell."""

    name: Hashable
    cell: Hashable
    log_ms: float
    error: float


@dataclass(frozen=True)
class Pool:
    """The logarithms of mechanisms' times at one length, with their covariances. home: who is in the fullest cell."""

    names: tuple[Hashable, ...]
    means: np.ndarray
    covariance: np.ndarray
    home: frozenset[Hashable]

    def own(self, name: Hashable) -> float:
        """The standard error of a time's logarithm beside those of the fullest cell, whose hour they share."""
        at = self.names.index(name)
        others = [self.covariance[at, i] for i, other in enumerate(self.names) if other in self.home and i != at]
        return math.sqrt(max(0.0, self.covariance[at, at] - max(others, default=0.0)))

    def time(self, name: Hashable) -> Estimate:
        """Milliseconds."""
        at = self.names.index(name)
        return _as_estimate(self.means[at], self.covariance[at, at])

    def speedup(self, base: Hashable, name: Hashable) -> Estimate | None:
        """The base's time over the mechanism's; None where the base was not timed at this length."""
        if base not in self.names:
            return None
        a, b = self.names.index(base), self.names.index(name)
        c = self.covariance
        return _as_estimate(self.means[a] - self.means[b], c[a, a] + c[b, b] - 2 * c[a, b])


def _as_estimate(mean: float, variance: float) -> Estimate:
    half = QUANTILE * math.sqrt(max(0.0, variance))
    return Estimate(*(math.exp(mean + side * half) for side in (0, -1, 1)))


def error_of(low: float | None, high: float | None) -> float | None:
    """The standard error of a logarithm whose 95% interval has these ends; None for none."""
    if low is None or high is None or not 0 < low <= high:
        return None
    return math.log(high / low) / 2 / QUANTILE


def pool(timings: Sequence[Timing]) -> Pool:
    """All mechanisms of one place and length. What lies outside of the fullest cell is carried over with the drift that
    ratios have between cells, and who differs between cells by more than all that has a wider error."""
    names = tuple(dict.fromkeys(one.name for one in timings))
    cells = Counter(one.cell for one in timings)
    home = max(reversed(cells), key=cells.__getitem__)  # of equally full ones the latest
    rows, several = np.arange(len(timings)), list(cells)
    whose, where = np.zeros((len(timings), len(names))), np.zeros((len(timings), len(several)))
    whose[rows, [names.index(one.name) for one in timings]] = 1
    where[rows, [several.index(one.cell) for one in timings]] = 1
    noise = np.array([max(LEAST, one.error) ** 2 + (2 * DRIFT**2 if one.cell != home else 0) for one in timings])
    times = np.array([one.log_ms for one in timings])
    inverse = np.linalg.inv(np.diag(noise) + HOURS**2 * where @ where.T)
    covariance = np.linalg.inv(whose.T @ inverse @ whose)
    means = covariance @ whose.T @ inverse @ times
    left = times - whose @ means
    left = left - where @ (HOURS**2 * where.T @ inverse @ left)  # without what its cell explains
    counts = whose.sum(axis=0)
    spread = np.sqrt(np.maximum(1.0, np.where(counts > 1, whose.T @ (left**2 / noise) / counts, 1.0)))
    inside = frozenset(one.name for one in timings if one.cell == home)
    return Pool(names, means, covariance * np.outer(spread, spread), inside)
