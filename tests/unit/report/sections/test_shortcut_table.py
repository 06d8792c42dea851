"""The table of shortcuts: scores of simple methods, and how many mechanisms are better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learned_runs import attempt, block, seeds


def _read(folder: Path, *records: Any) -> list[list[str]]:
    (table,) = [table for table in block(folder, *records).tables if table.caption == "Shortcuts"]
    assert table.head == ("Task", "Shortcut", "Score", "Better mechanisms")
    return [[cell.text for cell in row] for row in table.rows]


def test_each_shortcut_is_listed_with_the_mechanisms_that_are_better(tmp_path: Path) -> None:
    columns = {"train_shortcut_nearest_image": 0.6, "train_shortcut_ridge_regression": 0.3, "train_shortcut": 0.6}
    records = [
        *seeds("full", (0.9, 0.91), **columns),
        *seeds("mqa", (0.61,), **columns),
        attempt("linear", 0.32, **columns),
    ]
    assert _read(tmp_path, *records) == [
        ["recall, length 64", "ridge regression", "30.0%", "2 of 3"],  # the interval of linear contains 30%
        ["recall, length 64", "nearest image", "60.0%", "1 of 3"],
    ]


def test_fewer_bits_are_better_and_fitted_shortcuts_have_a_range(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"metric": "bits a token", "train_low": None, "train_high": None, "train_chance": 8.0}
    columns |= {"train_majority": 4.5, "train_shortcut_2_bytes": 2.7}
    full = attempt("full", 1.85, train_shortcut_3_bytes_seen=1.8, **columns)
    linear = attempt("linear", 1.85, train_shortcut_3_bytes_seen=1.9, **columns)
    assert _read(tmp_path, full, linear) == [
        ["recall, length 64", "2 bytes", "2.70", "2 of 2"],
        ["recall, length 64", "3 bytes seen", "1.80\u20131.90", "1 of 2"],  # each compared with its own
    ]


def test_tests_have_their_own_shortcuts(tmp_path: Path) -> None:
    records = [
        *seeds("full", (0.9,), train_shortcut_guess=0.2),
        *seeds("full", (0.9,), task="text", train_shortcut_context=0.3),
        *seeds("full", (0.9,), task="other"),
    ]
    assert [row[:3] for row in _read(tmp_path, *records)] == [
        ["recall, length 64", "guess", "20.0%"],
        ["text, length 64", "context", "30.0%"],
    ]


def test_rows_without_shortcuts_have_no_table(tmp_path: Path) -> None:
    assert "Shortcuts" not in [table.caption for table in block(tmp_path, *seeds("full", (0.9,))).tables]
