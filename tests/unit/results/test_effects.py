"""Main effects: known effects are recovered, and confounded ones have no estimates."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from efficient_attn.results.effects import EffectStep, fit_effects, is_estimable, list_steps

LEVELS: dict[str, list[Any]] = {
    "heads": [4, 12, 32],
    "dtype": ["float32", "bfloat16"],
    "fill": ["full", "half", "packed"],
}
HEADS, DTYPE, HALF, PACKED = list_steps(LEVELS)
PLANTED = {HEADS: 0.5, DTYPE: 2.0, HALF: 1.0, PACKED: 3.0}
POINTS = [dict(zip(LEVELS, values, strict=True)) for values in itertools.product(*LEVELS.values())]


def _values(noise: float = 0.0) -> list[float]:
    draw = random.Random(1)
    return [
        math.exp(sum(math.log(by) * step.share(p[step.factor]) for step, by in PLANTED.items()) + draw.gauss(0, noise))
        for p in POINTS
    ]


def test_numeric_factors_have_one_step_and_categorical_several() -> None:
    assert HEADS == ("heads", 4, 32)
    assert DTYPE == ("dtype", "float32", "bfloat16")
    assert [step.high for step in (HALF, PACKED)] == ["half", "packed"]
    assert list_steps({"causal": [False, True]}) == [EffectStep("causal", False, True)]


def test_intermediate_numbers_have_logarithmic_positions() -> None:
    assert [EffectStep("heads", 2, 32).share(n) for n in (2, 8, 32)] == pytest.approx([0, 0.5, 1])


def test_effects_are_recovered_exactly_without_noise() -> None:
    found = fit_effects(POINTS, _values(), list(PLANTED))
    assert found is not None
    assert {step: e.value for step, e in found.items()} == pytest.approx(PLANTED)


def test_intervals_cover_effects_with_noise() -> None:
    found = fit_effects(POINTS, _values(0.1), list(PLANTED))
    assert found is not None
    for step, wanted in PLANTED.items():
        low, high = found[step].low, found[step].high
        assert low is not None
        assert high is not None
        assert low < wanted < high < 1.6 * low


def test_an_interaction_widens_the_intervals_and_is_no_effect() -> None:
    values = [
        v * (2 if p["heads"] == 32 and p["dtype"] == "bfloat16" else 1) for v, p in zip(_values(), POINTS, strict=True)
    ]
    found = fit_effects(POINTS, values, list(PLANTED))
    assert found is not None
    assert found[HALF].value == pytest.approx(1.0)
    assert found[HALF].half_width > 0.1


def test_confounded_factors_have_no_estimates() -> None:
    together = [{"heads": 4, "batch": 1}, {"heads": 32, "batch": 8}] * 3
    steps = list_steps({"heads": [4, 32], "batch": [1, 8]})
    assert not is_estimable(together, steps)
    assert fit_effects(together, [1.0] * 6, steps) is None
    assert fit_effects(POINTS[:3], [1.0] * 3, list(PLANTED)) is None  # too few


def test_without_residual_degrees_of_freedom_there_is_no_interval() -> None:
    points = [{"heads": 4}, {"heads": 32}]
    found = fit_effects(points, [1.0, 3.0], list_steps({"heads": [4, 32]}))
    assert found is not None
    assert found[HEADS] == (pytest.approx(3.0), None, None)
