"""Scores of trained models: which attempts count, means over seeds, and rankings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learned_runs import WINDOW, attempt, block, cells, seeds, skipped, unable

from efficient_attn.errors import NotNeeded
from efficient_attn.report.sections import trained_scores
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
    assert cells(tmp_path, *seeds("full", (0.99, 0.90)))["full"] == ["94.5% (37.3\u2013100)"]


def test_scores_use_the_attempt_repeated_with_other_seeds(tmp_path: Path) -> None:
    """Another attempt of the first seed scored higher on the test set, which is not used to choose."""
    late = attempt("full", 0.8, "longer", train_budget=200)
    others = [attempt("full", 0.9, "best", index, train_budget=200) for index in (1, 2)]
    grid = attempt("full", 0.95, train_validation=0.1)
    assert cells(tmp_path, grid, late, *others)["full"][0].startswith("86.7% (")


def test_validation_chooses_the_attempt_of_a_single_seed(tmp_path: Path) -> None:
    better = attempt("full", 0.8, rate=0.0005, train_validation=0.9)
    assert cells(tmp_path, better, attempt("full", 0.95, train_validation=0.7))["full"] == ["80.0% (1 seed)"]


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
    assert cells(tmp_path, attempt("full", 0.11), attempt("full", 0.9, "best", 1))["full"][0].startswith("50.5%")


def test_no_ranking_if_no_mechanism_learned(tmp_path: Path) -> None:
    other = [*seeds("full", (0.6,), task="other"), *seeds("mqa", (0.9,), task="other")]
    (table, *_) = block(tmp_path, *unable("full"), *unable("mqa"), *other).tables
    assert "recall, length 64: no mechanism learned it, so it gives no ranking." in table.note
    assert [row[0].text for row in table.rows] == ["chance", "mqa", "full"]
    assert [cell.sort for row in table.rows[1:] for cell in row[1:]] == [None, 0.9, None, 0.6]


def test_no_ranking_if_the_baseline_is_at_chance(tmp_path: Path) -> None:
    (table, *_) = block(tmp_path, *unable("full"), *seeds("linear", (0.9,))).tables
    assert "recall, length 64: full itself is at chance, so there is no ranking." in table.note


REACHING: dict[str, Any] = {"train_shortcut": 0.5, "train_way": trained_scores.REACH_SHORTCUT}


@pytest.mark.parametrize(("scores", "complete"), [((0.49, 0.50), True), ((0.51,), True), ((0.30, 0.31), False)])
def test_learning_everything_within_reach_is_reported(tmp_path: Path, scores: Sequence[float], complete: bool) -> None:
    (table, training, *_) = block(tmp_path, *seeds("full", (0.9,)), *seeds(WINDOW, scores, **REACHING)).tables
    note = f"recall, length 64: with {WINDOW} a model can score 50.0%, by {trained_scores.REACH_SHORTCUT}"
    assert table.note == note + (", and it learned everything within its reach." if complete else ".")
    assert "shortcut" not in [row[0].text for row in table.rows]  # the shortcut is the variant's, not the task's
    assert training.rows[0][2].text == trained_scores.REACH_SHORTCUT


def test_texts_about_reach_match_the_trainer(tmp_path: Path) -> None:
    """Rows store them as text."""
    from efficient_attn.tasks.training import learning

    assert f'"{trained_scores.REACH_SHORTCUT}"' in Path(learning.__file__).read_text()
    baselines = Baselines(chance=0.1, majority=0.1)
    row = attempt(WINDOW, 0.1).row
    with pytest.raises(NotNeeded, match=trained_scores.COMPUTED_REASON):
        resolve_attempt(Attempt(kind="longer"), [row], COPYING.plan.args[0], baselines, 0.1)  # type: ignore[attr-defined]


def test_answers_beyond_reach_are_reported_as_chance(tmp_path: Path) -> None:
    reason = "no model that sees so few keys does better than chance: computed, not trained"
    rows = [
        attempt(WINDOW, 0.11, train_shortcut=0.1, train_way=trained_scores.REACH_SHORTCUT),
        skipped(WINDOW, "longer", reason),
    ]
    assert cells(tmp_path, *seeds("full", (0.9,)), *rows)[WINDOW] == ["at chance: no answer within its reach"]


def test_columns_are_named_by_test_and_ambiguous_part(tmp_path: Path) -> None:
    records = [
        *seeds("full", (0.9,)),
        *seeds("full", (0.8,), seq_len=128),
        *seeds("full", (0.7,), task="text"),
        *seeds("full", (0.6,), task="text", part="two"),
        attempt("linear", 0.5, task="text", part="two"),
    ]
    table = block(tmp_path, *records).tables[0]
    assert table.head[1:] == (
        "recall, length 64", "recall, length 128", "text, length 64 (one)", "text, length 64 (two)"
    )  # fmt: skip
    assert [cell.text for cell in table.rows[-1]] == ["linear", *["\u2013"] * 3, "50.0% (1 seed)"]
