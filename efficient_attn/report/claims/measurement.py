"""The measurement of one test of a claim: a value with standard errors, on a linear or log scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from ...results.differences import EXACT_DEGREES
from ...results.stats import Mean, estimate_mean, t_cdf, t_quantile

BASIS_ROUNDS, BASIS_INTERVALS = "raw rounds", "the rows' own 95% intervals, widened"
BASIS_SPREAD, BASIS_NO_ERROR = "spread over rows", "counted or computed, without an error"
BASIS_SINGLE = "a single measurement"
MAX_EXPONENT = 700.0  # larger ones overflow a float
IntervalSide = Literal["inside", "outside", "open"]


@dataclass(frozen=True)
class Measurement:
    """A value with a standard error on each side. log_scale: all of these are logarithms. degrees: of freedom, 0
    without a known error. basis: origin of the error. cases: the keys of the rows.
    """

    value: float
    error_below: float
    error_above: float
    degrees: int
    log_scale: bool
    basis: str
    cases: tuple[str, ...]

    @classmethod
    def of_mean(cls, mean: Mean, cases: Sequence[str], *, log_scale: bool, basis: str) -> Self:
        """From a mean with its standard error."""
        basis = basis if mean.degrees else BASIS_SINGLE
        return cls(mean.value, mean.error, mean.error, mean.degrees, log_scale, basis, tuple(cases))

    @classmethod
    def of_interval(cls, value: float, low: float, high: float, cases: Sequence[str]) -> Self:
        """From a 95% interval, on the log scale if it is positive."""
        log_scale = min(value, low) > 0
        value, low, high = map(math.log, (value, low, high)) if log_scale else (value, low, high)
        below, above = (max(0.0, half) / t_quantile(0.975, EXACT_DEGREES) for half in (value - low, high - value))
        return cls(value, below, above, EXACT_DEGREES, log_scale, BASIS_INTERVALS, tuple(cases))

    @classmethod
    def of_count(cls, value: float, cases: Sequence[str]) -> Self:
        """From a count, which has no error."""
        log_value = math.log(value) if value > 0 else value
        return cls(log_value, 0.0, 0.0, EXACT_DEGREES, value > 0, BASIS_NO_ERROR, tuple(cases))

    def to_log_mean(self) -> Mean:
        """The logarithm of a positive value, with the mean of both errors."""
        error = (self.error_below + self.error_above) / 2
        if self.log_scale:
            return Mean(self.value, error, self.degrees)
        return Mean(math.log(self.value), error / self.value, self.degrees)

    @property
    def plain(self) -> float:
        """The value in its own unit, not as a logarithm."""
        return self._from_scale(self.value)

    def interval(self, risk: float) -> tuple[float, float] | None:
        """The confidence interval at this risk; None without a known error."""
        if not self.degrees:
            return None
        scale = t_quantile(1 - risk / 2, self.degrees)
        low, high = self.value - scale * self.error_below, self.value + scale * self.error_above
        return self._from_scale(low), self._from_scale(high)

    def margin(self, least: float, most: float) -> float:
        """Distance of the value to the nearer bound, on its own scale; negative outside the bounds."""
        return min(self.value - self._to_scale(least), self._to_scale(most) - self.value)

    def side(self, least: float, most: float, risk: float) -> IntervalSide:
        """Whether the interval lies inside the bounds, which are inclusive, outside of them, or is open."""
        ends = self.interval(risk)
        if ends is None:
            return "open"
        slack = 1e-12 * max(1.0, abs(self.plain))  # tolerance for the rounding of logarithms of exact values
        if least - slack <= ends[0] and ends[1] <= most + slack:
            return "inside"
        return "outside" if ends[1] < least - slack or most + slack < ends[0] else "open"

    def p_value(self, least: float, most: float) -> float:
        """Two-sided p-value of the distance to the nearer bound."""
        if not self.degrees:
            return 1.0
        under, over = self.value - self._to_scale(least), self._to_scale(most) - self.value
        if under < 0:
            return self._tail_probability(under, self.error_above)
        if over < 0:
            return self._tail_probability(over, self.error_below)
        return max(self._tail_probability(under, self.error_below), self._tail_probability(over, self.error_above))

    def _tail_probability(self, distance: float, error: float) -> float:
        return 2 * t_cdf(-abs(distance) / error, self.degrees) if error else 0.0

    def half_widths(self, least: float, most: float, risk: float) -> tuple[float | None, float]:
        """The interval's half-width and the one that would decide; relative on the log scale."""

        def convert(width: float) -> float:
            return math.expm1(min(width, MAX_EXPONENT)) if self.log_scale else width

        needed = convert(abs(self.margin(least, most)))
        if not self.degrees:
            return None, needed
        return convert(t_quantile(1 - risk / 2, self.degrees) * max(self.error_below, self.error_above)), needed

    def _to_scale(self, end: float) -> float:
        if not self.log_scale or (math.isinf(end) and end > 0):
            return end
        return math.log(end) if end > 0 else -math.inf

    def _from_scale(self, value: float) -> float:
        return math.exp(max(-MAX_EXPONENT, min(MAX_EXPONENT, value))) if self.log_scale else value


def average_measurements(measurements: Sequence[Measurement]) -> Measurement:
    """Mean on the measurements' scale, with the error from their spread."""
    if len(measurements) == 1:
        return measurements[0]
    log_scale = all(measurement.log_scale for measurement in measurements)
    # sorted, so that the result does not depend on the order of rows
    values = sorted(measurement.value if log_scale else measurement.plain for measurement in measurements)
    cases = sorted({case for measurement in measurements for case in measurement.cases})
    return Measurement.of_mean(estimate_mean(values), cases, log_scale=log_scale, basis=BASIS_SPREAD)


def fit_power(lengths: Sequence[float], measurements: Sequence[Measurement], *, drift: float = 0.0) -> Measurement:
    """Fit the exponent of growth: the slope of a line through the log values over log lengths.

    The error is propagated from those of the values and an additional error of each (drift). Deviations from the line
    are not counted as error: if the exponent changes with the length, the result is a mean.
    """
    points = sorted(zip(lengths, (measurement.to_log_mean() for measurement in measurements), strict=True))
    xs, ys = [math.log(length) for length, _ in points], [mean for _, mean in points]
    middle = math.fsum(xs) / len(xs)
    spread = math.fsum((x - middle) ** 2 for x in xs)
    weights = [(x - middle) / spread for x in xs]
    slope = math.fsum(w * y.value for w, y in zip(weights, ys, strict=True))
    cases = sorted({case for measurement in measurements for case in measurement.cases})
    if not all(y.degrees for y in ys):
        return Measurement.of_mean(Mean(slope, math.inf, 0), cases, log_scale=False, basis=BASIS_SINGLE)
    parts = [(w * y.error) ** 2 for w, y in zip(weights, ys, strict=True)]
    variance = math.fsum(parts) + math.fsum((w * drift) ** 2 for w in weights)
    of_rounds = math.fsum(part**2 / y.degrees for part, y in zip(parts, ys, strict=True))
    degrees = int(min(EXACT_DEGREES, variance**2 / of_rounds)) if of_rounds else EXACT_DEGREES
    mean = Mean(slope, math.sqrt(variance), degrees)
    return Measurement.of_mean(mean, cases, log_scale=False, basis=measurements[0].basis)
