"""Training attempts: which are planned, in which order, and settings that depend on earlier rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny_training as tiny

from efficient_attn.errors import NotNeeded
from efficient_attn.results.rows import Row
from efficient_attn.tasks.problems.lm import LM
from efficient_attn.tasks.training.attempts import (
    Attempt,
    AttemptSettings,
    is_at_chance,
    list_attempts,
    resolve_attempt,
)
from efficient_attn.tasks.training.problem import Baselines

BASELINES = Baselines(chance=1 / 16, majority=1 / 16)
BITS = replace(LM, name="bits")
BEYOND, LONGER, BEST = Attempt(kind="beyond", rate=8e-3), Attempt(kind="longer"), Attempt(kind="best", index=1)


def _row(rate: float, validation: float | None, score: float | None = 0.05, **changed: Any) -> Row:
    extra = {
        "train.attempt": changed.pop("attempt", "grid"),
        "train.learning_rate": rate,
        "train.validation": validation,
        "train.score": score,
        "train.budget": changed.pop("budget", 100),
        "train.examples": 512,
    }
    return Row(status="ok", extra=extra, **changed)


FAILED = Row(status="invalid", reason="the loss is nan at step 3")


def _resolve(attempt: Attempt, *earlier: Row, reach: float | None = None, problem: Any = tiny.TINY) -> AttemptSettings:
    return resolve_attempt(attempt, earlier, problem, BASELINES, reach)


# -- planning --------------------------------------------------------------------------------------------------------


def test_attempts_are_ordered_by_kind() -> None:
    attempts = list(list_attempts(tiny.TINY, tiny.keys(learning_rates=(1e-2, 1e-3, 4e-3), seeds=3), quick=False))
    assert [(a.kind, a.rate, a.index) for a in attempts] == [
        *(("grid", 1e-2, 0), ("grid", 1e-3, 0), ("grid", 4e-3, 0)),
        *(("beyond", 4e-2, 0), ("beyond", 2.5e-4, 0), ("longer", None, 0)),
        *(("best", None, 1), ("best", None, 2)),
    ]
    assert len({a.label for a in attempts}) == len(attempts)  # labels identify rows


def test_rates_beyond_the_grid_are_at_most_a_tenth() -> None:
    attempts = list_attempts(tiny.TINY, tiny.keys(learning_rates=(0.09,)), quick=False)
    assert [a.rate for a in attempts if a.kind == "beyond"] == [0.1, 0.09 / 4]


def test_default_rates_are_the_problems_and_quick_runs_use_one() -> None:
    rates = tiny.TINY.recipe.learning_rates
    assert [a.rate for a in list_attempts(tiny.TINY, tiny.keys(), quick=False) if a.kind == "grid"] == list(rates)
    assert list(list_attempts(tiny.TINY, tiny.keys(), quick=True)) == [Attempt(kind="grid", rate=rates[0])]


# -- settings --------------------------------------------------------------------------------------------------------


def test_settings_of_the_grid_do_not_depend_on_rows() -> None:
    assert _resolve(Attempt(kind="grid", rate=1e-3)) == AttemptSettings(1e-3, None)
    assert _resolve(Attempt(kind="grid", rate=1e-3), _row(2e-3, 1.0, 1.0)) == AttemptSettings(1e-3, None)


def test_best_has_rate_and_steps_of_the_highest_validation() -> None:
    rows = _row(2e-3, 0.5, 0.9), _row(5e-4, 0.7, 0.4, budget=200), _row(1e-4, 0.6, 0.6)
    assert _resolve(BEST, *rows) == AttemptSettings(5e-4, 200)  # not those of the highest test score


def test_best_has_the_fewest_bits() -> None:
    assert _resolve(BEST, _row(2e-3, 2.5), _row(5e-4, 2.1), problem=BITS) == AttemptSettings(5e-4, 100)


def test_best_considers_beyond_and_longer_but_not_other_seeds() -> None:
    rows = [_row(2e-3, 0.1), _row(8e-3, 0.2, attempt="beyond"), _row(8e-3, 0.4, attempt="longer", budget=200)]
    assert _resolve(BEST, *rows) == AttemptSettings(8e-3, 200)
    assert _resolve(BEST, *rows, _row(1e-4, 0.9, attempt="best", seed=1)) == AttemptSettings(8e-3, 200)


def test_failed_attempts_are_ignored() -> None:
    assert _resolve(BEST, FAILED, _row(5e-4, 0.3), Row(status="skipped")) == AttemptSettings(5e-4, 100)
    for attempt in (BEYOND, LONGER, BEST):
        with pytest.raises(NotNeeded, match="no rate of the grid came to an end"):
            _resolve(attempt, FAILED, Row(status="timeout"))
        with pytest.raises(NotNeeded, match="no rate of the grid came to an end"):
            _resolve(attempt)


def test_more_attempts_are_needed_only_if_the_grid_is_at_chance() -> None:
    assert _resolve(BEYOND, _row(2e-3, 0.05), _row(5e-4, 0.06), FAILED) == AttemptSettings(8e-3, None)
    for attempt in (BEYOND, LONGER):
        with pytest.raises(NotNeeded, match="more than chance was learned"):
            _resolve(attempt, _row(2e-3, 0.05), _row(5e-4, 0.3, 0.3))


def test_longer_has_twice_the_steps_of_the_best() -> None:
    rows = _row(2e-3, 0.04), _row(5e-4, 0.06, budget=120), _row(8e-3, 0.05, attempt="beyond")
    assert _resolve(LONGER, *rows) == AttemptSettings(5e-4, 240)


@pytest.mark.parametrize("attempt", [BEYOND, LONGER])
def test_more_attempts_are_skipped_if_reach_limits_to_chance(attempt: Attempt) -> None:
    rows = _row(2e-3, 0.05), _row(5e-4, 0.06)
    with pytest.raises(NotNeeded, match="computed, not trained"):
        _resolve(attempt, *rows, reach=1.01 * BASELINES.chance)
    assert _resolve(attempt, *rows, reach=1.1 * BASELINES.chance)
    assert _resolve(BEST, *rows, reach=BASELINES.chance) == AttemptSettings(5e-4, 100)  # other seeds are still trained


# -- chance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "expected"), [(0.0, True), (1 / 16, True), (0.08, True), (0.1, False), (1.0, False)])
def test_scores_not_significantly_above_chance_are_at_chance(score: float, expected: bool) -> None:
    assert is_at_chance(_row(1e-3, 0.5, score), tiny.TINY, BASELINES) is expected


def test_significance_depends_on_the_number_of_examples() -> None:
    few = _row(1e-3, 0.5, 0.125)
    assert not is_at_chance(few, tiny.TINY, BASELINES)
    few.extra["train.examples"] = 8
    assert is_at_chance(few, tiny.TINY, BASELINES)


def test_scores_up_to_the_majority_baseline_are_at_chance() -> None:
    assert is_at_chance(_row(1e-3, 0.5, 0.3), tiny.TINY, Baselines(chance=0.1, majority=0.3))
    assert not is_at_chance(_row(1e-3, 0.5, 0.3), tiny.TINY, Baselines(chance=0.1, majority=0.2))


@pytest.mark.parametrize(("score", "expected"), [(4.9, False), (5.0, True), (7.9, True), (None, True)])
def test_bits_are_compared_with_the_lower_baseline(score: float | None, expected: bool) -> None:
    assert is_at_chance(_row(1e-3, 5.0, score), BITS, Baselines(chance=8.0, majority=5.0)) is expected
