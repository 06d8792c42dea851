"""Scores of trained models: which attempts count, means over seeds, and rankings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learned_runs import WINDOW, attempt, block, cells, seeds, skipped, unable

from efficient_attn.errors import NotNeeded
from efficient_attn.report.sections import mechanism_result, trained_scores
from efficient_attn.results.rows import Record
from efficient_attn.tasks.problems.problem_table import COPYING
from efficient_attn.tasks.training.attempts import Attempt, resolve_attempt
from efficient_attn.tasks.training.problem import Baselines


def test_scores_are_means_over_seeds_at_the_best_rate(tmp_path: Path) -> None:
    scores = cells(tmp_path, *seeds("full", (0.90, 0.92, 0.94)), *seeds("linear", (0.40,)))
    assert scores["full"] == ["92.0% (87.0\u201397.0)"]  # t(2) = 4.303 times 0.02 / sqrt 3
    assert scores["linear"] == ["40.0% (1 seed)"]
    assert scores["chance"] == ["10.0%"]
    assert "majority" not in scores  # the same as chance
    assert "shortcut" not in scores


def test_intervals_of_shares_end_at_100_percent(tmp_path: Path) -> None:
    assert cells(tmp_path, *seeds("full", (0.99, 0.95)))["full"] == ["97.0% (71.6\u2013100)"]


def test_scores_use_the_attempt_repeated_with_other_seeds(tmp_path: Path) -> None:
    """Another attempt of the first seed scored higher on the test set, which is not used to choose."""
    others = [attempt("full", 0.82, "best", index) for index in (1, 2)]
    grid = [attempt("full", 0.95, rate=rate, train_validation=0.1) for rate in (0.001, 0.004)]
    assert cells(tmp_path, *grid, attempt("full", 0.79), *others)["full"][0].startswith("81.0% (")


def test_validation_chooses_the_attempt_of_a_single_seed(tmp_path: Path) -> None:
    better = attempt("full", 0.8, train_validation=0.9)
    others = [attempt("full", 0.95, rate=rate, train_validation=0.7) for rate in (0.001, 0.004)]
    assert cells(tmp_path, better, *others)["full"] == ["80.0% (1 seed)"]


def test_attempts_of_several_sessions_are_one_row_though_another_part_repeats_them(tmp_path: Path) -> None:
    """Resumed with another selection: one rate in the first session, others and another part in the next."""
    first = attempt("full", 0.9, run_id="first")
    others = [attempt("full", 0.5, rate=rate, run_id="next") for rate in (0.001, 0.004)]
    repeated = seeds("full", (0.7,), part="two", run_id="next")
    scores = cells(tmp_path, first, *others, *repeated, *seeds("linear", (0.4,)))
    assert scores["full"] == ["90.0% (1 seed)", "70.0% (1 seed)"]


@pytest.mark.parametrize(("stop_reason", "text"), mechanism_result.NOT_LEVELLED_OFF.items())
def test_models_that_still_improve_are_shown_but_not_ranked(tmp_path: Path, stop_reason: str, text: str) -> None:
    rising = seeds("linear", (0.95, 0.96), stop_reason=stop_reason)
    (table, *_) = block(tmp_path, *seeds("full", (0.9, 0.91)), *rising, *seeds("mqa", (0.8, 0.81))).tables
    assert [row[0].text for row in table.rows] == ["chance", "full", "mqa", "linear"]
    assert table.rows[-1][1].text.endswith(f"), {text}")
    assert [row[1].sort is None for row in table.rows[1:]] == [False, False, True]


@pytest.mark.parametrize(
    ("scores", "edge"), [((0.5, 0.9, 0.5), False), ((0.5, 0.6, 0.9), True), ((0.9, 0.6, 0.5), True)]
)
def test_a_best_rate_at_an_end_of_the_grid_is_marked(tmp_path: Path, scores: Sequence[float], edge: bool) -> None:
    grid = [attempt("linear", score, rate=rate) for score, rate in zip(scores, (0.001, 0.002, 0.004), strict=True)]
    text = cells(tmp_path, *seeds("full", (0.9,)), *grid)["linear"][0]
    assert text == "90.0% (1 seed)" + (", rate at the edge" if edge else "")


def test_a_rate_whose_loss_is_nan_closes_the_grid(tmp_path: Path) -> None:
    failed = attempt("linear", 0.0, rate=0.004).row
    failed = replace(failed, status="invalid", reason="the loss is nan at step 3", extra={}, mode=None)
    grid = [attempt("linear", score, rate=rate) for score, rate in ((0.5, 0.001), (0.9, 0.002))]
    assert cells(tmp_path, *seeds("full", (0.9,)), *grid, Record(failed))["linear"] == ["90.0% (1 seed)"]


def test_rates_that_solved_the_task_are_ties(tmp_path: Path) -> None:
    rates = {0.001: 0.9992, 0.002: 0.9993, 0.004: 0.9999}
    grid = [attempt("linear", score, rate=rate, train_validation_error=0.0) for rate, score in rates.items()]
    assert cells(tmp_path, *seeds("full", (0.9,)), *grid)["linear"][0].endswith("rate at the edge")
    for record in grid:
        record.row.stop_reason = mechanism_result.SOLVED
    assert cells(tmp_path / "solved", *seeds("full", (0.9,)), *grid)["linear"] == ["99.9% (1 seed)"]


def test_given_rates_are_not_at_an_edge(tmp_path: Path) -> None:
    given = [attempt("linear", 0.9, "given"), attempt("linear", 0.91, "best", 1)]
    assert cells(tmp_path, *seeds("full", (0.9,)), *given)["linear"][0].startswith("90.5% (")


def test_intervals_contain_their_means_as_shown(tmp_path: Path) -> None:
    assert cells(tmp_path, *seeds("full", (1.0, 0.9996, 0.9998)))["full"] == ["99.9% (99.9\u2013100)"]


def test_not_learned_requires_all_attempts(tmp_path: Path) -> None:
    early = [attempt("linear", 0.11), attempt("linear", 0.12, rate=0.0005)]
    scores = cells(tmp_path, *seeds("full", (0.9,)), *unable("mqa"), *early)
    assert scores["mqa"] == ["not learned (5 attempts)"]
    assert scores["linear"] == ["at chance, too early to say"]


def test_a_nan_loss_counts_as_an_attempt(tmp_path: Path) -> None:
    *rest, last = unable("mqa")
    failed = replace(last.row, status="invalid", reason="the loss is nan at step 3", extra={}, mode=None)
    scores = cells(tmp_path, *seeds("full", (0.9,)), *rest, Record(failed))
    assert scores["mqa"] == ["not learned (5 attempts)"]


def test_one_successful_seed_counts_as_learned(tmp_path: Path) -> None:
    """Even if it is not the first seed."""
    assert cells(tmp_path, *seeds("full", (0.11, 0.9)))["full"] == ["11.0%, 90.0% (each of 2 seeds)"]


def test_no_ranking_if_no_mechanism_learned(tmp_path: Path) -> None:
    other = [*seeds("full", (0.6,), task="other"), *seeds("mqa", (0.9,), task="other")]
    (table, *_) = block(tmp_path, *unable("full"), *unable("mqa"), *other).tables
    assert "recall, length 64: no mechanism learned it, so it gives no ranking." in table.note
    assert [row[0].text for row in table.rows] == ["chance", "mqa", "full"]
    assert [cell.sort for row in table.rows[1:] for cell in row[1:]] == [None, 0.9, None, 0.6]


def test_no_ranking_if_the_baseline_is_at_chance(tmp_path: Path) -> None:
    (table, *_) = block(tmp_path, *unable("full"), *seeds("linear", (0.9,))).tables
    assert "recall, length 64: full itself is at chance, so there is no ranking." in table.note


@pytest.mark.parametrize(("scores", "complete"), [((0.49, 0.50), True), ((0.51,), True), ((0.30, 0.31), False)])
def test_learning_everything_within_reach_is_reported(tmp_path: Path, scores: Sequence[float], complete: bool) -> None:
    (table, training, *_) = block(tmp_path, *seeds("full", (0.9,)), *seeds(WINDOW, scores, train_reach=0.5)).tables
    note = f"recall, length 64: with {WINDOW} the answers within reach, and guesses of the others, score 50.0%"
    assert table.note == note + (", and it learned everything within its reach." if complete else ".")
    assert "shortcut" not in [row[0].text for row in table.rows]
    assert training.rows[0][2].text == "\u2013"
    assert [cell.subtext for row in table.rows for cell in row] == [""] * 2 * len(table.rows)


def test_reaches_of_earlier_rows_are_not_shown(tmp_path: Path) -> None:
    """They were stored as a shortcut, and those of pairs were too large."""
    earlier: dict[str, Any] = {"train_shortcut": 0.5, "train_way": mechanism_result.REACH_SHORTCUT}
    (table, training, *_) = block(tmp_path, *seeds("full", (0.9,)), *seeds(WINDOW, (0.4,), **earlier)).tables
    assert "reach" not in table.note
    assert "shortcut" not in [row[0].text for row in table.rows]
    assert training.rows[0][2].text == "\u2013"


KNOWN: dict[str, Any] = {"train_shortcut": 0.6, "train_way": "the nearest image", "train_caveat": "Pixels are enough."}


@pytest.mark.parametrize(
    ("scores", "marked"),
    [
        ((0.5,), True),
        ((0.62,), True),  # its interval over examples, 0.03 either way, contains 0.6
        ((0.64,), False),
        ((0.64, 0.70), True),  # its interval over seeds is wide
        ((0.64, 0.65, 0.645), False),
    ],
)
def test_scores_that_are_not_better_than_the_shortcut_are_marked(
    tmp_path: Path, scores: Sequence[float], marked: bool
) -> None:
    table = block(tmp_path, *seeds("full", (0.9,), **KNOWN), *seeds(WINDOW, scores, **KNOWN)).tables[0]
    subtexts = {row[0].text: row[1].subtext for row in table.rows}
    assert subtexts.pop(WINDOW) == ("not better than the shortcut" if marked else "")
    assert set(subtexts.values()) == {""}
    reason = "is not significantly better than the shortcut, the nearest image (60.0%). Pixels are enough."
    assert table.note == (f"recall, length 64: {WINDOW} {reason}" if marked else "")


def test_the_note_on_examples_is_always_shown(tmp_path: Path) -> None:
    known = KNOWN | {"train_note": "Tests are short."}
    table = block(tmp_path, *seeds("full", (0.9,), **known), *seeds(WINDOW, (0.8,), **known)).tables[0]
    assert table.note == "recall, length 64: Tests are short."


def test_shortcuts_in_bits_are_beaten_by_fewer(tmp_path: Path) -> None:
    columns = {"metric": "bits a token", "train_low": None, "train_high": None, "train_chance": 8.0}
    columns |= {"train_majority": 4.5, "train_shortcut": 2.0, "train_way": "4 bytes of context"}
    scores = {"full": 1.9, "linear": 2.0, "mqa": 3.0, WINDOW: 4.6}
    table = block(tmp_path, *(attempt(name, score, **columns) for name, score in scores.items())).tables[0]
    assert {row[0].text for row in table.rows if row[1].subtext} == {"linear", "mqa"}  # a window is at chance
    note = (
        "recall, length 64: linear and mqa are not significantly better than the shortcut, 4 bytes of context (2.00)."
    )
    assert table.note == note


RATES = {0.001: 0.5, 0.002: 0.9, 0.004: 0.5}
NEEDLESS = trained_scores.NEEDLESS_REASONS[:2]


def test_texts_match_the_trainer(tmp_path: Path) -> None:
    """Rows store them as text."""
    from efficient_attn.tasks.training import attempts, plateau

    baselines = Baselines(chance=0.1, majority=0.1)
    problem: Any = COPYING.plan.args[0]  # type: ignore[attr-defined]
    first, keys = Attempt(kind="grid", rate=0.002), problem.keys()
    earlier, options = [(first, attempt(WINDOW, 0.1).row)], {"baselines": baselines, "reach_score": 0.1}
    with pytest.raises(NotNeeded, match=mechanism_result.COMPUTED_REASON):
        resolve_attempt(Attempt(kind="above", rate=0.004), earlier, problem, keys, WINDOW, **options)
    for needless, text in zip(
        (Attempt(kind="above", rate=0.004), Attempt(kind="more", index=1)), NEEDLESS, strict=True
    ):
        grid = [(Attempt(kind="grid", rate=rate), attempt(WINDOW, s, rate=rate).row) for rate, s in RATES.items()]
        with pytest.raises(NotNeeded) as raised:
            resolve_attempt(needless, grid, problem, keys, WINDOW, baselines=baselines, reach_score=None)
        assert str(raised.value) == text
    assert (mechanism_result.STILL_IMPROVING, mechanism_result.SOLVED) == (plateau.STILL_IMPROVING, plateau.SOLVED)
    assert trained_scores.NEEDLESS_REASONS[2] == attempts.GIVEN_REASON
    assert trained_scores.GRID_REASON == attempts.GRID_REASON


def test_answers_beyond_reach_are_reported_as_chance(tmp_path: Path) -> None:
    reason = "no model that sees so few keys does better than chance: computed, not trained"
    rows = [
        attempt(WINDOW, 0.11, train_reach=0.1),
        skipped(WINDOW, "longer", reason),
    ]
    assert cells(tmp_path, *seeds("full", (0.9,)), *rows)[WINDOW] == ["at chance: no answer within its reach"]


def test_columns_are_named_by_test_and_ambiguous_part(tmp_path: Path) -> None:
    records = [
        *seeds("full", (0.9,)),
        *seeds("full", (0.8,), seq_len=128),
        *seeds("full", (0.7,), task="text"),
        *seeds("full", (0.6,), task="text", part="two"),
        *seeds("linear", (0.5,), task="text", part="two"),
    ]
    table = block(tmp_path, *records).tables[0]
    assert table.head[1:] == (
        "recall, length 64", "recall, length 128", "text, length 64 (one)", "text, length 64 (two)"
    )  # fmt: skip
    assert [cell.text for cell in table.rows[-1]] == ["linear", *["\u2013"] * 3, "50.0% (1 seed)"]
