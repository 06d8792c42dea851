"""Uptraining on the page: scores by conversion and share, differences of conversions, and a plot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learned_runs import attempt, block, cells, panels, seeds, uptrained

from efficient_attn.errors import NotNeeded
from efficient_attn.report.sections.trained_scores import NEEDLESS_REASONS
from efficient_attn.results.rows import Record
from efficient_attn.tasks.training.uptraining import SAME_REASON

BITS: dict[str, Any] = {"metric": "bits a token", "train_chance": 8.0, "train_majority": 4.5}


def _make_records(**known: Any) -> Iterator[Record]:
    yield from seeds("full", (0.9, 0.9), **known)
    yield from seeds("mqa", (0.8, 0.82), **known)
    yield from uptrained("full", "none", 0.05, (0.91, 0.91), **known)
    for conversion, low, high in (("random", 0.1, 0.5), ("mean", 0.6, 0.85), ("first", 0.5, 0.8)):  # in any order
        yield from uptrained("mqa", conversion, 0.0, (low, low + 0.02), **known)
        yield from uptrained("mqa", conversion, 0.05, (high, high + 0.02), **known)


def _find_tables(made: Any) -> tuple[Any, Any]:
    scores, differences = (table for table in made.tables if "uptraining" in table.caption)
    return scores, differences


def test_scores_are_listed_by_conversion_and_share_beside_original_and_scratch(tmp_path: Path) -> None:
    scores, _ = _find_tables(block(tmp_path, *_make_records()))
    assert scores.head == ("Variant", "Conversion", "0%", "5%", "Original", "From scratch")
    texts = [[cell.text.partition(" (")[0] for cell in row] for row in scores.rows]
    assert texts == [
        ["full", "none, trained further", "\u2013", "91.0%", "90.0%", "90.0%"],
        ["mqa", "mean", "61.0%", "86.0%", "90.0%", "81.0%"],
        ["mqa", "first", "51.0%", "81.0%", "90.0%", "81.0%"],
        ["mqa", "random", "11.0%", "51.0%", "90.0%", "81.0%"],
    ]
    assert scores.rows[1][3].text == "86.0% (73.3\u201398.7)"  # t(1) = 12.706 times 0.02 / 2
    assert scores.rows[2][3].sort == pytest.approx(0.81)


def test_uptrained_models_are_no_results_of_their_mechanisms(tmp_path: Path) -> None:
    assert cells(tmp_path / "with", *_make_records())["mqa"] == ["81.0% (68.3\u201393.7)"]
    attempts = block(tmp_path / "attempts", *_make_records()).tables[-1]
    assert "uptrain" not in {row[2].text for row in attempts.rows}


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    _, differences = _find_tables(block(tmp_path, *_make_records()))
    assert [row[1].text for row in differences.rows] == ["mean against first", "first against random"]
    assert differences.rows[0][3].text == "5.00% (5.00\u20135.00)"
    one = list(uptrained("mqa", "mean", 0.0, (0.5, 0.5, 0.6)))
    other = list(uptrained("mqa", "random", 0.0, (0.4, 0.45)))
    _, differences = _find_tables(block(tmp_path / "seeds", *seeds("mqa", (0.8,)), *one, *other))
    assert [row[1].text for row in differences.rows] == ["mean against random"]  # the neighbour that exists
    assert differences.rows[0][2].sort == pytest.approx(0.075)  # of the seeds that both have
    assert differences.rows[0][2].text == "7.50% (-24.3 to 39.3)"


def test_fewer_bits_are_better(tmp_path: Path) -> None:
    worse, better = uptrained("mqa", "first", 0.1, (2.2,), **BITS), uptrained("mqa", "mean", 0.1, (2.0,), **BITS)
    scores, differences = _find_tables(block(tmp_path, attempt("full", 1.9, **BITS), *worse, *better))
    assert [row[2].text for row in scores.rows] == ["2.00 (1 seed)", "2.20 (1 seed)"]
    assert [cell.text for cell in scores.rows[0][3:]] == ["0.900 (1 seed)", "\u2013"]  # mqa was not trained itself
    assert differences.rows[0][2].text == "0.200 (1 seed)"


def test_a_plot_of_each_converted_mechanism_has_the_original_and_scratch(tmp_path: Path) -> None:
    made = panels(block(tmp_path, *_make_records()))["uptraining"]
    lines = {line.label: line for line in made.lines}
    assert list(lines) == ["mean", "first", "random", "original", "from scratch"]
    assert list(lines["mean"].x) == [0, 5]
    assert list(lines["mean"].y) == pytest.approx([0.61, 0.86])
    assert list(lines["original"].y) == pytest.approx([0.9, 0.9])
    assert list(lines["from scratch"].y) == pytest.approx([0.81, 0.81])
    assert made.title == "Uptraining: mqa, recall, length 64"


def test_a_single_share_or_no_training_from_scratch_is_drawn_too(tmp_path: Path) -> None:
    made = block(tmp_path, *seeds("full", (0.9,)), *uptrained("mqa", "first", 0.05, (0.5, 0.6)))
    assert [line.label for line in panels(made)["uptraining"].lines] == ["first", "original"]
    assert len([table for table in made.tables if "uptraining" in table.caption]) == 1  # nothing to compare


def test_failed_uptraining_is_left_out(tmp_path: Path) -> None:
    (record,) = uptrained("mqa", "mean", 0.05, (0.5,))
    failed = replace(record.row, status="error", reason="MissingOriginal: none", extra={}, mode=None, metric=None)
    captions = [table.caption for table in block(tmp_path, *seeds("full", (0.9,)), Record(failed)).tables]
    assert not any("uptraining" in caption for caption in captions)


def test_skipped_conversions_are_not_missing() -> None:
    assert str(NotNeeded(SAME_REASON)) in NEEDLESS_REASONS
