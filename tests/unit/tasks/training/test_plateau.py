"""The rule that ends training, on made-up curves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from efficient_attn.tasks.training.plateau import LEAST_GAIN, find_reference_step, has_learned, has_levelled_off

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
    assert _find_end(lambda step: 0.11 if step < 200 else 0.9) == 380  # learned suddenly: 190 is not after its half


def test_a_curve_ends_when_its_last_quarter_gains_less_than_half_a_point() -> None:
    end = _find_end(lambda step: 1 - 0.8 * math.exp(-step / 30))
    assert end is not None
    gain = 0.8 * (math.exp(-0.75 * end / 30) - math.exp(-end / 30))
    assert gain < LEAST_GAIN
    late = _find_end(lambda step: 1 - 0.8 * math.exp(-step / 40))
    assert late is not None
    assert late > end  # a slower learner is trained longer


@pytest.mark.parametrize(("metric", "start", "gain"), [("bits", 3.0, 0.03), ("accuracy", 0.9, 0.005)])
def test_one_percent_or_half_a_point_in_a_quarter_is_no_gain(metric: str, start: float, gain: float) -> None:
    """Lines: means of quarters of the steps up to 400 differ by the improvement of 100 steps."""
    sign = -1 if metric == "bits" else 1
    for share, expected in ((0.9, True), (1.1, False)):
        scores = [(step, start + sign * share * gain * (step - 250) / 100) for step in range(1, MOST + 1)]
        trivial = 8.0 if metric == "bits" else 0.1
        assert has_levelled_off(scores, metric, trivial, MOST, certainly=False) is expected


@pytest.mark.parametrize(("gain", "most_ended", "least_ended"), [(0.04, 0.2, 0.0), (0.0, 1.0, 0.6)])
def test_noise_ends_few_trainings_that_improve_and_most_that_do_not(
    gain: float, most_ended: float, least_ended: float
) -> None:
    """Scores of 256 examples, as of pronunciation, with a standard error of .02 and a gain in a quarter of the most
    steps, of which the last fifth is the decay; means alone would end more than nine of ten."""
    ended = dict.fromkeys((True, False), 0)
    for seed in range(100):
        noise = np.random.default_rng(seed).normal(0, 0.02, 32)
        curve = [(10 * i, 0.4 + gain * i / 10 + noise[i - 1]) for i in range(1, 33)]
        for certainly in ended:
            ended[certainly] += any(
                has_levelled_off(curve[:i], "accuracy", 0.1, MOST, certainly=certainly) for i in range(1, 33)
            )
    assert least_ended <= ended[True] / 100 <= most_ended
    assert ended[False] > 90


def test_noise_is_measured_between_neighbours() -> None:
    """The same scores in another order: steps of one half are noise of the means, a trend is not."""
    flat = [(step, 0.5) for step in range(10, 210, 10)]
    zigzag = [(step, 0.5 + 0.01 * (-1) ** i) for i, (step, _) in enumerate(flat)]
    assert has_levelled_off(flat, "accuracy", 0.1, MOST)
    assert has_levelled_off(zigzag, "accuracy", 0.1, MOST, certainly=False)
    assert not has_levelled_off(zigzag, "accuracy", 0.1, MOST)


def test_a_quarter_needs_two_validations() -> None:
    scores = [(100, 0.9), (200, 0.9), (300, 0.9), (400, 0.9)]
    assert not has_levelled_off(scores, "accuracy", 0.1, MOST)
    assert has_levelled_off([*scores[:2], (220, 0.9), *scores[2:3], (320, 0.9), *scores[3:]], "accuracy", 0.1, MOST)


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
