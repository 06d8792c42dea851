"""Main effects: the effect of each factor on a value, from few points at which all factors vary."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .stats import Estimate, fit_least_squares

Levels = Mapping[str, Sequence[Any]]  # the values of each factor, the lowest first
DesignPoint = Mapping[str, Any]


class EffectStep(NamedTuple):
    """From a factor's lowest level to its highest; for categorical factors, from the first level to another."""

    factor: str
    low: Any
    high: Any

    def share(self, value: Any) -> float:
        """The position of a value in the step: 0 at its low end, 1 at its high end, logarithmic in between."""
        if is_number(self.high):
            return math.log(value / self.low) / math.log(self.high / self.low)
        return float(value == self.high)


def is_number(value: Any) -> bool:
    """Whether a value is a number; a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def list_steps(levels: Levels) -> list[EffectStep]:
    """The steps of all factors: one for a numeric factor, one for each further level of a categorical factor."""
    steps: list[EffectStep] = []
    for factor, values in levels.items():
        low, *higher = values
        steps += [EffectStep(factor, low, high) for high in (higher[-1:] if is_number(low) else higher)]
    return steps


def build_design_matrix(points: Sequence[DesignPoint], steps: Sequence[EffectStep]) -> np.ndarray:
    """A row for each point: 1, then its position in each step."""
    return np.array([[1.0, *(step.share(point[step.factor]) for step in steps)] for point in points])


def is_estimable(points: Sequence[DesignPoint], steps: Sequence[EffectStep]) -> bool:
    """Whether these points can separate the effects of all steps."""
    return len(points) > len(steps) and int(np.linalg.matrix_rank(build_design_matrix(points, steps))) == len(steps) + 1


def fit_effects(
    points: Sequence[DesignPoint], values: Sequence[float], steps: Sequence[EffectStep]
) -> dict[EffectStep, Estimate] | None:
    """The factor by which each step multiplies a positive value, all else equal: least squares on logarithms, with
    t-intervals if there are residual degrees of freedom, which contain the interactions. None if the points cannot
    separate the steps."""
    if not is_estimable(points, steps):
        return None
    _, *effects = fit_least_squares(build_design_matrix(points, steps), np.log(np.asarray(values, dtype=float)))
    return {step: effect.exp() for step, effect in zip(steps, effects, strict=True)}
