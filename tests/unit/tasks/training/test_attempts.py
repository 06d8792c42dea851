"""Training attempts: which are planned, in which order, and settings that depend on earlier rows."""

from __future__ import annotations

from collections.abc import Sequence
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
    get_trivial_score,
    is_at_chance,
    list_attempts,
    resolve_attempt,
)
from efficient_attn.tasks.training.plateau import NOT_LEARNED, SOLVED
from efficient_attn.tasks.training.problem import Baselines

BASELINES = Baselines(chance=1 / 16, majority=1 / 16)
BITS = replace(LM, name="bits")
BEST, MORE = Attempt(kind="best", index=1), Attempt(kind="more", index=3)
WITHIN = "the best learning rate lies within the grid"


def _above(rate: float) -> Attempt:
    return Attempt(kind="above", rate=rate)


def _below(rate: float) -> Attempt:
    return Attempt(kind="below", rate=rate)


def _row(attempt: Attempt, validation: float | None, error: float = 0.01, **changed: Any) -> tuple[Attempt, Row]:
    extra = {
        "train.attempt": attempt.kind,
        "train.learning_rate": changed.pop("rate", attempt.rate),
        "train.validation": validation,
        "train.validation_error": error,
        "train.score": changed.pop("score", validation),
        "train.budget": 100,
    }
    return attempt, Row(status="ok", extra=extra, **changed)


def _grid(*scores: float | None, **known: Any) -> list[tuple[Attempt, Row]]:
    """Rates 1e-3, 2e-3, 4e-3, ...; None for a loss that is not finite."""
    rows = []
    for n, score in enumerate(scores):
        attempt = Attempt(kind="grid", rate=1e-3 * 2**n)
        rows.append((attempt, Row(status="invalid")) if score is None else _row(attempt, score, **known))
    return rows


def _resolve(
    attempt: Attempt,
    earlier: Sequence[tuple[Attempt, Row]],
    *,
    reach: float | None = None,
    problem: Any = tiny.TINY,
    keys: Any = None,
    baselines: Baselines = BASELINES,
) -> AttemptSettings:
    return resolve_attempt(
        attempt, earlier, problem, keys or tiny.keys(), "full", baselines=baselines, reach_score=reach
    )


# -- planning --------------------------------------------------------------------------------------------------------


def test_attempts_are_ordered_by_kind() -> None:
    attempts = list(list_attempts(tiny.TINY, tiny.keys(learning_rates=(1e-2, 4e-3), seeds=3), quick=False))
    assert [(a.kind, a.rate, a.index) for a in attempts] == [
        *(("grid", 1e-2, 0), ("grid", 4e-3, 0)),
        *(("above", 2e-2, 0), ("below", 2e-3, 0), ("above", 4e-2, 0), ("below", 1e-3, 0)),
        *(("above", 8e-2, 0), ("below", 5e-4, 0)),
        *(("best", None, 1), ("best", None, 2), ("more", None, 3), ("more", None, 4)),
    ]
    assert len({a.label for a in attempts}) == len(attempts)  # labels identify rows


def test_a_single_seed_has_no_further_ones() -> None:
    attempts = list_attempts(tiny.TINY, tiny.keys(seeds=1), quick=False)
    assert {attempt.kind for attempt in attempts} == {"grid", "above", "below"}


def test_rates_above_the_grid_are_less_than_a_half() -> None:
    attempts = list_attempts(tiny.TINY, tiny.keys(learning_rates=(0.2,)), quick=False)
    assert [a.rate for a in attempts if a.kind == "above"] == [0.4]


def test_default_rates_are_the_problems_and_quick_runs_use_one() -> None:
    rates = tiny.TINY.recipe.learning_rates
    assert [a.rate for a in list_attempts(tiny.TINY, tiny.keys(), quick=False) if a.kind == "grid"] == list(rates)
    assert list(list_attempts(tiny.TINY, tiny.keys(), quick=True)) == [Attempt(kind="grid", rate=rates[0])]


# -- the grid and its extension --------------------------------------------------------------------------------------


def test_settings_of_the_grid_do_not_depend_on_rows() -> None:
    assert _resolve(Attempt(kind="grid", rate=1e-3), []) == AttemptSettings(1e-3, None)
    assert _resolve(Attempt(kind="grid", rate=1e-3), _grid(1.0, 0.5)) == AttemptSettings(1e-3, None)


def test_best_has_rate_and_steps_of_the_highest_validation() -> None:
    rows = _grid(0.5, 0.7, 0.6)
    rows[0][1].extra["train.score"] = 0.9  # on tests
    assert _resolve(BEST, rows) == AttemptSettings(2e-3, 100)


def test_best_has_the_fewest_bits() -> None:
    bits = Baselines(chance=8.0, majority=5.0)
    assert _resolve(BEST, _grid(2.5, 2.1, 2.3), problem=BITS, baselines=bits) == AttemptSettings(2e-3, 100)


def test_the_grid_is_extended_at_the_end_where_the_best_lies() -> None:
    assert _resolve(_above(8e-3), _grid(0.5, 0.6, 0.7)) == AttemptSettings(8e-3, None)
    with pytest.raises(NotNeeded, match=WITHIN):
        _resolve(_below(5e-4), _grid(0.5, 0.6, 0.7))
    assert _resolve(_below(5e-4), _grid(0.7, 0.6, 0.5)) == AttemptSettings(5e-4, None)
    for attempt in (_above(8e-3), _below(5e-4)):
        with pytest.raises(NotNeeded, match=WITHIN):
            _resolve(attempt, _grid(0.5, 0.7, 0.6))


def test_the_extension_ends_once_the_best_lies_inside() -> None:
    rising = [*_grid(0.5, 0.6, 0.7), _row(_above(8e-3), 0.8)]
    assert _resolve(_above(16e-3), rising) == AttemptSettings(16e-3, None)
    for last in (0.7, None):  # worse, or not finite
        row = _row(_above(16e-3), last) if last else (_above(16e-3), Row(status="invalid"))
        with pytest.raises(NotNeeded, match=WITHIN):
            _resolve(_above(32e-3), [*rising, row])
        assert _resolve(BEST, [*rising, row]) == AttemptSettings(8e-3, 100)


def test_rates_within_a_standard_error_are_ties() -> None:
    with pytest.raises(NotNeeded, match=WITHIN):
        _resolve(_above(8e-3), _grid(0.5, 0.69, 0.7, error=0.02))
    assert _resolve(BEST, _grid(0.5, 0.69, 0.7, error=0.02)) == AttemptSettings(2e-3, 100)
    assert _resolve(_above(8e-3), _grid(0.5, 0.69, 0.7, error=0.005))


def test_rates_that_solved_the_task_are_ties() -> None:
    rows = _grid(0.5, 0.999, 0.9995, error=0.0)
    assert _resolve(_above(8e-3), rows)
    for _, row in rows[1:]:
        row.stop_reason = SOLVED
    with pytest.raises(NotNeeded, match=WITHIN):
        _resolve(_above(8e-3), rows)
    assert _resolve(BEST, rows) == AttemptSettings(2e-3, 100)


def test_without_a_finished_training_no_other_is_needed() -> None:
    for attempt in (_above(8e-3), BEST, MORE):
        for rows in ([], _grid(None, None)):
            with pytest.raises(NotNeeded, match="no training with the first seed came to an end"):
                _resolve(attempt, rows)


def test_skipped_attempts_are_not_tried_rates() -> None:
    skipped = (_above(8e-3), Row(status="skipped", reason=WITHIN))
    assert _resolve(BEST, [*_grid(0.5, 0.7, 0.6), skipped]) == AttemptSettings(2e-3, 100)


def test_all_rates_are_tried_if_nothing_was_learned() -> None:
    by_chance, hardly_more = _grid(0.06, 0.065, 0.06), _grid(0.075, 0.076, 0.075, error=0.001, stop_reason=NOT_LEARNED)
    for attempt in (_above(8e-3), _below(5e-4), _above(32e-3)):
        for rows in (by_chance, hardly_more):  # the best lies inside
            assert _resolve(attempt, rows) == AttemptSettings(attempt.rate or 0.0, None)
    with pytest.raises(NotNeeded, match=WITHIN):
        _resolve(_above(8e-3), [*hardly_more, _row(_below(5e-4), 0.076, error=0.001)])  # one has learned


@pytest.mark.parametrize("attempt", [_above(8e-3), _below(5e-4)])
def test_rates_beyond_are_skipped_if_reach_limits_to_chance(attempt: Attempt) -> None:
    rows = _grid(0.06, 0.065, 0.06)
    with pytest.raises(NotNeeded, match="computed, not trained"):
        _resolve(attempt, rows, reach=1.01 * BASELINES.chance)
    assert _resolve(attempt, rows, reach=1.1 * BASELINES.chance)
    assert _resolve(BEST, rows, reach=BASELINES.chance) == AttemptSettings(2e-3, 100)  # other seeds are still trained


# -- seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scores", "needed"), [((0.70, 0.74, 0.749), False), ((0.70, 0.74, 0.76), True), ((), False)])
def test_two_more_seeds_are_trained_if_the_others_disagree(scores: tuple[float, ...], needed: bool) -> None:
    rows = _grid(0.5, 0.7, 0.6)
    rows[1][1].extra["train.score"] = scores[0] if scores else 0.7
    rows += [_row(Attempt(kind="best", index=n), 0.7, rate=2e-3, score=s) for n, s in enumerate(scores[1:], 1)]
    if needed:
        assert _resolve(MORE, rows) == AttemptSettings(2e-3, 100)
    else:
        with pytest.raises(NotNeeded, match=r"^the scores of all seeds are within 0\.05$"):
            _resolve(MORE, rows)


def test_other_rates_do_not_make_seeds_disagree() -> None:
    rows = [*_grid(0.1, 0.7, 0.6), _row(Attempt(kind="best", index=1), 0.7, rate=2e-3)]
    with pytest.raises(NotNeeded, match="within"):
        _resolve(MORE, rows)


@pytest.mark.parametrize(("score", "needed"), [(0.1, False), (0.11, True), (0.89, True), (0.9, False), (1.0, False)])
def test_further_seeds_may_depend_on_the_first_score(score: float, needed: bool) -> None:
    keys = tiny.keys(seeds_between=(0.1, 0.9))
    rows = [*_grid(score - 0.05, score, score - 0.05, score=1 - score)]  # tests do not matter
    if needed:
        assert _resolve(BEST, rows, keys=keys) == AttemptSettings(2e-3, 100)
        return
    for attempt in (BEST, MORE):
        with pytest.raises(NotNeeded, match=r"^the first seed's score is not between 0\.1 and 0\.9$"):
            _resolve(attempt, rows, keys=keys)


# -- given rates -----------------------------------------------------------------------------------------------------


def test_given_rates_replace_the_grid() -> None:
    keys = tiny.keys(rates={"full": 3e-3, "linear": 1e-3}, seeds=2)
    attempts = list(list_attempts(tiny.TINY, keys, quick=False, variants=["linear", "full"]))
    assert [(a.kind, a.index) for a in attempts] == [("given", 0), ("best", 1), ("more", 2), ("more", 3)]
    assert _resolve(attempts[0], [], keys=keys) == AttemptSettings(3e-3, None)
    first = _row(attempts[0], 0.7, rate=3e-3)
    assert _resolve(attempts[1], [first], keys=keys) == AttemptSettings(3e-3, 100)
    second = _row(attempts[1], 0.6, rate=3e-3)
    assert _resolve(attempts[2], [first, second], keys=keys) == AttemptSettings(3e-3, 100)
    assert list(list_attempts(tiny.TINY, keys, quick=True, variants=["full"])) == [Attempt(kind="given")]
    assert hash(keys)  # cached functions take keys


def test_mechanisms_without_a_given_rate_try_the_grid() -> None:
    keys, grid = tiny.keys(rates={"linear": 1e-3}), Attempt(kind="grid", rate=2e-3)
    kinds = [a.kind for a in list_attempts(tiny.TINY, keys, quick=False, variants=["full", "linear"])]
    assert list(dict.fromkeys(kinds)) == ["given", "grid", "above", "below", "best", "more"]
    with pytest.raises(NotNeeded, match=r"^the suite gives no learning rate of full$"):
        _resolve(Attempt(kind="given"), [], keys=keys)
    assert _resolve(grid, [], keys=keys) == AttemptSettings(2e-3)
    assert _resolve(BEST, _grid(0.5, 0.7, 0.6), keys=keys) == AttemptSettings(2e-3, 100)
    for attempt in (grid, _above(8e-3)):
        with pytest.raises(NotNeeded, match=r"^the suite gives its learning rate$"):
            _resolve(attempt, _grid(0.5, 0.6, 0.7), keys=tiny.keys(rates={"full": 1e-3}))
    assert len(list(list_attempts(tiny.TINY, keys, quick=True, variants=["full", "linear"]))) == 2


# -- chance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "expected"), [(0.0, True), (1 / 16, True), (0.08, True), (0.1, False), (1.0, False)])
def test_scores_not_significantly_above_chance_are_at_chance(score: float, expected: bool) -> None:
    assert is_at_chance(_row(BEST, score)[1], tiny.TINY, BASELINES) is expected


def test_significance_depends_on_the_standard_error() -> None:
    assert not is_at_chance(_row(BEST, 0.125, error=0.02)[1], tiny.TINY, BASELINES)
    assert is_at_chance(_row(BEST, 0.125, error=0.04)[1], tiny.TINY, BASELINES)


def test_scores_up_to_the_majority_baseline_are_at_chance() -> None:
    row = _row(BEST, 0.3)[1]
    assert is_at_chance(row, tiny.TINY, Baselines(chance=0.1, majority=0.3))
    assert not is_at_chance(row, tiny.TINY, Baselines(chance=0.1, majority=0.2))


@pytest.mark.parametrize(("score", "expected"), [(4.9, False), (4.99, True), (7.9, True), (None, True)])
def test_bits_are_compared_with_the_lower_baseline(score: float | None, expected: bool) -> None:
    baselines = Baselines(chance=8.0, majority=5.0)
    assert is_at_chance(_row(BEST, score)[1], BITS, baselines) is expected
    assert get_trivial_score(BITS, baselines) == 5.0
