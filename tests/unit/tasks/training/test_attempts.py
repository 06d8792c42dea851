"""Attempts: which are planned, in which order, and what is settled once it is known how the earlier ones ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny_training as tiny

from efficient_attn.results.rows import Row
from efficient_attn.tasks.problems.lm import LM
from efficient_attn.tasks.training.attempts import (
    Attempt,
    AttemptSettings,
    NotNeeded,
    is_at_chance,
    list_attempts,
    resolve_attempt,
)
from efficient_attn.tasks.training.problem import Baselines

TOLD = Baselines(chance=1 / 16, majority=1 / 16)
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


def _settle(attempt: Attempt, *earlier: Row, reach: float | None = None, problem: Any = tiny.TINY) -> AttemptSettings:
    return resolve_attempt(attempt, earlier, problem, TOLD, reach)


# -- what is planned -------------------------------------------------------------------------------------------------


def test_the_grid_comes_first_then_what_lies_beyond_then_longer_then_the_other_seeds() -> None:
    found = list(list_attempts(tiny.TINY, tiny.keys(learning_rates=(1e-2, 1e-3, 4e-3), seeds=3), quick=False))
    assert [(a.kind, a.rate, a.index) for a in found] == [
        *(("grid", 1e-2, 0), ("grid", 1e-3, 0), ("grid", 4e-3, 0)),
        *(("beyond", 4e-2, 0), ("beyond", 2.5e-4, 0), ("longer", None, 0)),
        *(("best", None, 1), ("best", None, 2)),
    ]
    assert len({a.label for a in found}) == len(found)  # by which rows are told apart


def test_no_rate_is_beyond_a_tenth() -> None:
    found = list_attempts(tiny.TINY, tiny.keys(learning_rates=(0.09,)), quick=False)
    assert [a.rate for a in found if a.kind == "beyond"] == [0.1, 0.09 / 4]


def test_the_problems_own_rates_are_the_grid_where_none_are_given_and_a_trial_takes_the_first() -> None:
    rates = tiny.TINY.recipe.learning_rates
    assert [a.rate for a in list_attempts(tiny.TINY, tiny.keys(), quick=False) if a.kind == "grid"] == list(rates)
    assert list(list_attempts(tiny.TINY, tiny.keys(), quick=True)) == [Attempt(kind="grid", rate=rates[0])]


# -- what is settled -------------------------------------------------------------------------------------------------


def test_the_grid_is_known_before_anything_is() -> None:
    assert _settle(Attempt(kind="grid", rate=1e-3)) == AttemptSettings(1e-3, None)
    assert _settle(Attempt(kind="grid", rate=1e-3), _row(2e-3, 1.0, 1.0)) == AttemptSettings(1e-3, None)


def test_the_best_has_the_rate_and_the_steps_of_the_highest_validation() -> None:
    rows = _row(2e-3, 0.5, 0.9), _row(5e-4, 0.7, 0.4, budget=200), _row(1e-4, 0.6, 0.6)
    assert _settle(BEST, *rows) == AttemptSettings(5e-4, 200)  # not of the highest score on tests


def test_of_bits_the_lowest_is_the_best() -> None:
    assert _settle(BEST, _row(2e-3, 2.5), _row(5e-4, 2.1), problem=BITS) == AttemptSettings(5e-4, 100)


def test_rates_beyond_and_longer_attempts_count_among_the_best_and_other_seeds_do_not() -> None:
    rows = [_row(2e-3, 0.1), _row(8e-3, 0.2, attempt="beyond"), _row(8e-3, 0.4, attempt="longer", budget=200)]
    assert _settle(BEST, *rows) == AttemptSettings(8e-3, 200)
    assert _settle(BEST, *rows, _row(1e-4, 0.9, attempt="best", seed=1)) == AttemptSettings(8e-3, 200)


def test_what_failed_does_not_count() -> None:
    assert _settle(BEST, FAILED, _row(5e-4, 0.3), Row(status="skipped")) == AttemptSettings(5e-4, 100)
    for attempt in (BEYOND, LONGER, BEST):
        with pytest.raises(NotNeeded, match="no rate of the grid came to an end"):
            _settle(attempt, FAILED, Row(status="timeout"))
        with pytest.raises(NotNeeded, match="no rate of the grid came to an end"):
            _settle(attempt)


def test_beyond_the_grid_only_where_all_of_it_is_at_chance() -> None:
    assert _settle(BEYOND, _row(2e-3, 0.05), _row(5e-4, 0.06), FAILED) == AttemptSettings(8e-3, None)
    for attempt in (BEYOND, LONGER):
        with pytest.raises(NotNeeded, match="more than chance was learned"):
            _settle(attempt, _row(2e-3, 0.05), _row(5e-4, 0.3, 0.3))


def test_longer_has_twice_the_steps_of_the_best() -> None:
    rows = _row(2e-3, 0.04), _row(5e-4, 0.06, budget=120), _row(8e-3, 0.05, attempt="beyond")
    assert _settle(LONGER, *rows) == AttemptSettings(5e-4, 240)


@pytest.mark.parametrize("attempt", [BEYOND, LONGER])
def test_nothing_more_is_tried_where_the_reach_says_that_it_is_hopeless(attempt: Attempt) -> None:
    rows = _row(2e-3, 0.05), _row(5e-4, 0.06)
    with pytest.raises(NotNeeded, match="computed, not trained"):
        _settle(attempt, *rows, reach=1.01 * TOLD.chance)
    assert _settle(attempt, *rows, reach=1.1 * TOLD.chance)
    assert _settle(BEST, *rows, reach=TOLD.chance) == AttemptSettings(
        5e-4, 100
    )  # the other seeds are trained all the same


# -- chance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "so"), [(0.0, True), (1 / 16, True), (0.08, True), (0.1, False), (1.0, False)])
def test_at_chance_is_what_is_not_surely_better(score: float, so: bool) -> None:
    assert is_at_chance(_row(1e-3, 0.5, score), tiny.TINY, TOLD) is so


def test_the_fewer_examples_the_less_is_sure() -> None:
    few = _row(1e-3, 0.5, 0.125)
    assert not is_at_chance(few, tiny.TINY, TOLD)
    few.extra["train.examples"] = 8
    assert is_at_chance(few, tiny.TINY, TOLD)


def test_the_answer_that_is_most_often_right_needs_no_learning_either() -> None:
    assert is_at_chance(_row(1e-3, 0.5, 0.3), tiny.TINY, Baselines(chance=0.1, majority=0.3))
    assert not is_at_chance(_row(1e-3, 0.5, 0.3), tiny.TINY, Baselines(chance=0.1, majority=0.2))


@pytest.mark.parametrize(("score", "so"), [(4.9, False), (5.0, True), (7.9, True), (None, True)])
def test_of_bits_the_fewer_of_chance_and_majority_are_the_bound(score: float | None, so: bool) -> None:
    assert is_at_chance(_row(1e-3, 5.0, score), BITS, Baselines(chance=8.0, majority=5.0)) is so
