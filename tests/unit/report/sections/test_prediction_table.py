"""Prediction: rank correlations of constructed tasks with language modelling, and which mechanisms count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from learned_runs import attempt, block, seeds, unable

from efficient_attn.report.sections.prediction_table import NOTE
from efficient_attn.results.rows import Record

NAMES = ("full", "mqa", "linear", "retention", "cosformer", "taylor", "strided")
BITS: dict[str, Any] = {
    "task": "lm", "metric": "bits a token", "train_chance": 8.0, "train_majority": 4.5, "train_low": None,
    "train_high": None,
}  # fmt: skip


def _make_language(bits: Sequence[float], names: Sequence[str] = NAMES, **known: Any) -> Iterator[Record]:
    for name, value in zip(names, bits, strict=False):
        for rate, more in ((0.001, 0.5), (0.002, 0.0), (0.004, 0.5)):
            yield attempt(name, value + more, rate=rate, **{**BITS, **known})


def _make_recall(scores: Sequence[float], **known: Any) -> Iterator[Record]:
    for name, score in zip(NAMES, scores, strict=False):
        yield from seeds(name, (score,), **known)


def _find_rows(tmp_path: Path, *records: Record) -> list[list[str]]:
    tables = [table for table in block(tmp_path, *records).tables if "predict" in table.caption]
    return [[cell.text for cell in row] for table in tables for row in table.rows]


def test_better_mechanisms_at_both_give_a_positive_correlation(tmp_path: Path) -> None:
    bits, recall = (2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6), (0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4)
    (row,) = _find_rows(tmp_path, *_make_language(bits), *_make_recall(recall))
    assert row[:4] == ["recall, length 64", "lm, length 64", "7", "0"]
    assert row[4].startswith("1.00 (0.")
    assert row[5] == "positive"
    (row,) = _find_rows(tmp_path / "reversed", *_make_language(bits), *_make_recall(recall[::-1]))
    assert (row[4].partition(" ")[0], row[5]) == ("-1.00", "negative")
    (row,) = _find_rows(tmp_path / "mixed", *_make_language(bits), *_make_recall((0.6, 0.9, 0.4, 0.7, 0.5, 0.8, 0.3)))
    assert row[5] == "undecided"


def test_mechanisms_without_a_final_score_are_counted(tmp_path: Path) -> None:
    language = list(_make_language((2.0, 2.1, 2.2, 2.3, 2.4, 2.5)))  # strided has none
    edge = attempt("linear", 0.8)  # a single rate
    rising = seeds("mqa", (0.85,), stop_reason="still improving after the most steps")
    rest = [x for name, s in zip(NAMES[3:], (0.7, 0.6, 0.5, 0.4), strict=True) for x in seeds(name, (s,))]
    (row,) = _find_rows(tmp_path, *language, *seeds("full", (0.9,)), *rising, edge, *rest)
    assert row[2:] == ["4", "3", "\u2013", "fewer than 5 final scores"]
    other = [*language, *seeds("full", (0.9,)), *seeds("mqa", (0.85,)), edge, *rest]
    (row,) = _find_rows(tmp_path / "enough", *other)
    assert row[2:4] == ["5", "2"]
    assert row[4].startswith("1.00")


def test_fewer_than_five_mechanisms_have_no_table(tmp_path: Path) -> None:
    bits = (2.0, 2.1, 2.2, 2.3)
    assert _find_rows(tmp_path, *_make_language(bits), *_make_recall((0.9, 0.8, 0.7, 0.6, 0.5, 0.4))) == []
    assert _find_rows(tmp_path / "lm", *_make_language((2.0, 2.1, 2.2, 2.3, 2.4))) == []
    assert _find_rows(tmp_path / "recall", *_make_recall((0.9, 0.8, 0.7, 0.6, 0.5, 0.4))) == []


def test_mechanisms_at_chance_are_equal(tmp_path: Path) -> None:
    """Two that learned nothing, one of which scored higher by luck."""
    learned = [*_make_recall((0.9, 0.8, 0.7, 0.6, 0.5))]
    lucky = [attempt("taylor", 0.125, kind, rate=rate) for kind, rate in (
        ("grid", 0.001), ("grid", 0.002), ("grid", 0.004), ("above", 0.008), ("below", 0.0005),
    )]  # fmt: skip
    first, second = (
        _find_rows(tmp_path / name, *_make_language(bits), *learned, *lucky, *unable("strided"))
        for name, bits in (("a", (2.0, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6)), ("b", (2.0, 2.1, 2.2, 2.3, 2.4, 2.6, 2.5)))
    )
    assert first == second
    assert first[0][2:4] == ["7", "0"]


def test_equal_scores_have_no_correlation(tmp_path: Path) -> None:
    (row,) = _find_rows(tmp_path, *_make_language((2.0, 2.1, 2.2, 2.3, 2.4)), *_make_recall((0.9,) * 5))
    assert row[4:] == ["\u2013", "all scores are equal"]


def test_tasks_without_a_ranking_are_left_out(tmp_path: Path) -> None:
    others = [x for name in NAMES[1:6] for x in seeds(name, (0.9,))]
    assert _find_rows(tmp_path, *_make_language((2.0, 2.1, 2.2, 2.3, 2.4, 2.5)), *unable("full"), *others) == []


def test_each_task_has_a_row_and_the_note_states_the_limits(tmp_path: Path) -> None:
    recall = (0.9, 0.8, 0.7, 0.6, 0.5)
    language = _make_language((2.0, 2.1, 2.2, 2.3, 2.4), parameters=130_000)
    made = block(tmp_path, *language, *_make_recall(recall), *_make_recall(recall, task="copying"))
    (table,) = (table for table in made.tables if "predict" in table.caption)
    assert [row[0].text for row in table.rows] == ["recall, length 64", "copying, length 64"]
    assert table.note.startswith(NOTE)
    assert table.note.endswith("3,000 to 130,000 parameters; whether larger ones would be ordered so is not measured.")
