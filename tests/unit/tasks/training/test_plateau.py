"""The rule that ends training, on made-up curves."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from efficient_attn.tasks.training.plateau import find_reference_step, has_learned, has_levelled_off

MOST = 400


def _find_end(curve: Callable[[int], float], metric: str = "accuracy", trivial: float = 0.1) -> int | None:
    """The first validation, of one every ten steps, at which the rule ends training; None if it never does."""
    scores: list[tuple[int, float]] = []
    for step in range(10, MOST + 1, 10):
        scores.append((step, curve(step)))
        if has_levelled_off(scores, metric, trivial, MOST):
            return step
    return None


def test_a_curve_that_still_rises_never_ends() -> None:
    assert _find_end(lambda step: step / MOST) is None
    assert _find_end(lambda step: 8.0 - 4 * step / MOST, "bits", 8.0) is None


def test_a_flat_curve_ends_after_a_quarter_of_the_most_steps() -> None:
    assert _find_end(lambda step: 0.9) == MOST // 4
    assert _find_end(lambda step: 2.0, "bits", 8.0) == MOST // 4


def test_nothing_learned_is_no_plateau() -> None:
    assert _find_end(lambda step: 0.1) is None
    assert _find_end(lambda step: 8.0, "bits", 8.0) is None
    assert _find_end(lambda step: 0.11 if step < 300 else 0.9) == 400  # learned suddenly, and then level for a quarter


def test_a_curve_ends_when_its_last_quarter_gains_less_than_half_a_point() -> None:
    end = _find_end(lambda step: 1 - 0.8 * math.exp(-step / 30))
    assert end is not None
    gain = 0.8 * (math.exp(-0.75 * end / 30) - math.exp(-end / 30))
    assert gain < 0.01  # of two validations, ten steps apart
    late = _find_end(lambda step: 1 - 0.8 * math.exp(-step / 60))
    assert late is not None
    assert late > end  # a slower learner is trained longer


def test_one_percent_of_the_remaining_error_is_no_gain() -> None:
    assert _find_end(lambda step: 3.0 - 0.02 * (step > 90), "bits", 8.0) == 100
    assert _find_end(lambda step: 3.0 - 0.04 * (step > 90), "bits", 8.0) == 140


def test_noise_that_only_lowers_scores_does_not_delay_the_end() -> None:
    assert _find_end(lambda step: 0.5 if step % 30 == 0 else 0.9) == MOST // 4


@pytest.mark.parametrize(("best", "expected"), [(0.1, False), (0.117, False), (0.12, True)])
def test_learned_is_two_percent_of_the_trivial_error(best: float, expected: bool) -> None:
    assert has_learned([(10, 0.05), (20, best), (30, 0.08)], "accuracy", 0.1) is expected


def test_reference_step_has_ninety_percent_of_the_final_improvement() -> None:
    scores = [(10, 0.1), (20, 0.5), (30, 0.83), (40, 0.9)]
    assert find_reference_step(scores, "accuracy", 0.1) == 2  # above 0.1 + 0.9 * 0.8
    assert find_reference_step([(10, 8.0), (20, 3.0), (30, 2.0)], "bits", 8.0) == 2
    assert find_reference_step([(10, 8.0), (20, 2.5), (30, 2.0)], "bits", 8.0) == 1
    assert find_reference_step([(10, 0.3), (20, 0.1)], "accuracy", 0.1) is None  # it ended with nothing
    assert find_reference_step([], "accuracy", 0.1) is None
