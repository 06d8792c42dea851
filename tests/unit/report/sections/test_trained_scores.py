"""Which attempts count, and what may be said of them: means over seeds, who is unable, who is ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learned_runs import WINDOW, attempt, block, cells, seeds, skipped, unable

from efficient_attn.report.sections import trained_scores
from efficient_attn.results.rows import Record
from efficient_attn.tasks.problems.problem_table import COPYING
from efficient_attn.tasks.training.attempts import Attempt, NotNeeded, resolve_attempt
from efficient_attn.tasks.training.problem import Baselines


def test_a_cell_is_the_mean_over_seeds_at_the_best_rate(tmp_path: Path) -> None:
    found = cells(tmp_path, *seeds("full", (0.90, 0.92, 0.94)), *seeds("linear", (0.40,)))
    assert found["full"] == ["92.0% (87.0\u201397.0)"]  # t(2) = 4.303 times 0.02 / sqrt 3
    assert found["linear"] == ["40.0% (1 seed)"]
    assert found["chance"] == ["10.0%"]
    assert "majority" not in found  # the same as chance
    assert "shortcut" not in found


def test_an_interval_of_shares_ends_at_all(tmp_path: Path) -> None:
    assert cells(tmp_path, *seeds("full", (0.99, 0.90)))["full"] == ["94.5% (37.3\u2013100)"]


def test_the_rate_and_steps_of_other_seeds_are_the_chosen_ones(tmp_path: Path) -> None:
    """Though another attempt of the first seed did better on the test, which decides nothing."""
    late = attempt("full", 0.8, "longer", train_budget=200)
    others = [attempt("full", 0.9, "best", index, train_budget=200) for index in (1, 2)]
    grid = attempt("full", 0.95, train_validation=0.1)
    assert cells(tmp_path, grid, late, *others)["full"][0].startswith("86.7% (")


def test_without_other_seeds_validation_chooses(tmp_path: Path) -> None:
    better = attempt("full", 0.8, rate=0.0005, train_validation=0.9)
    assert cells(tmp_path, better, attempt("full", 0.95, train_validation=0.7))["full"] == ["80.0% (1 seed)"]


def test_who_is_called_unable_has_tried_everything(tmp_path: Path) -> None:
    early = [attempt("linear", 0.11), attempt("linear", 0.12, rate=0.0005)]
    found = cells(tmp_path, *seeds("full", (0.9,)), *unable("mqa"), *early)
    assert found["mqa"] == ["not learned (5 attempts)"]
    assert found["linear"] == ["at chance, too early to say"]


def test_a_loss_that_is_no_number_is_an_attempt(tmp_path: Path) -> None:
    *rest, last = unable("mqa")
    lost = replace(last.row, status="invalid", reason="the loss is nan at step 3", extra={}, mode=None)
    found = cells(tmp_path, *seeds("full", (0.9,)), *rest, Record(lost))
    assert found["mqa"] == ["not learned (5 attempts)"]


def test_what_is_learned_once_is_learned(tmp_path: Path) -> None:
    """By a seed that is not the first."""
    assert cells(tmp_path, attempt("full", 0.11), attempt("full", 0.9, "best", 1))["full"][0].startswith("50.5%")


def test_nobody_is_ranked_where_nobody_learned(tmp_path: Path) -> None:
    other = [*seeds("full", (0.6,), task="other"), *seeds("mqa", (0.9,), task="other")]
    (table, *_) = block(tmp_path, *unable("full"), *unable("mqa"), *other).tables
    assert "recall, length 64: no mechanism learned it, so it gives no ranking." in table.note
    assert [row[0].text for row in table.rows] == ["chance", "mqa", "full"]
    assert [cell.sort for row in table.rows[1:] for cell in row[1:]] == [None, 0.9, None, 0.6]


def test_where_the_baseline_alone_fails_that_is_said(tmp_path: Path) -> None:
    (table, *_) = block(tmp_path, *unable("full"), *seeds("linear", (0.9,))).tables
    assert "recall, length 64: full itself is at chance, so there is no ranking." in table.note


REACHING: dict[str, Any] = {"train_shortcut": 0.5, "train_way": trained_scores.REACH_SHORTCUT}


@pytest.mark.parametrize(("scores", "whole"), [((0.49, 0.50), True), ((0.51,), True), ((0.30, 0.31), False)])
def test_a_mechanism_that_learned_all_within_its_reach_is_reported_so(
    tmp_path: Path, scores: Sequence[float], whole: bool
) -> None:
    (table, training, *_) = block(tmp_path, *seeds("full", (0.9,)), *seeds(WINDOW, scores, **REACHING)).tables
    said = f"recall, length 64: with {WINDOW} a model can score 50.0%, by {trained_scores.REACH_SHORTCUT}"
    assert table.note == said + (", and it learned everything within its reach." if whole else ".")
    assert "shortcut" not in [row[0].text for row in table.rows]  # it is not the task's
    assert training.rows[0][2].text == trained_scores.REACH_SHORTCUT


def test_the_words_for_reach_are_the_trainers(tmp_path: Path) -> None:
    """Rows carry them as words."""
    from efficient_attn.tasks.training import learning

    assert f'"{trained_scores.REACH_SHORTCUT}"' in Path(learning.__file__).read_text()
    told = Baselines(chance=0.1, majority=0.1)
    own = attempt(WINDOW, 0.1).row
    with pytest.raises(NotNeeded, match=trained_scores.COMPUTED_REASON):
        resolve_attempt(Attempt(kind="longer"), [own], COPYING.plan.args[0], told, 0.1)  # type: ignore[attr-defined]


def test_what_lies_beyond_reach_was_computed(tmp_path: Path) -> None:
    reason = "no model that sees so few keys does better than chance: computed, not trained"
    rows = [
        attempt(WINDOW, 0.11, train_shortcut=0.1, train_way=trained_scores.REACH_SHORTCUT),
        skipped(WINDOW, "longer", reason),
    ]
    assert cells(tmp_path, *seeds("full", (0.9,)), *rows)[WINDOW] == ["at chance: no answer within its reach"]


def test_a_column_a_test_and_parts_where_they_tell_apart(tmp_path: Path) -> None:
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
