"""Shortcuts: the columns of rows, and the examples that they are fitted to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_suites
import tiny_training as tiny
from inline_measurement import measure_cases

from efficient_attn.bench.task_registry import register_task
from efficient_attn.tasks.training import shortcuts
from efficient_attn.tasks.training.learning import make_task
from efficient_attn.tasks.training.problem import Baselines, Batch

SCORES = {"a guess by position": 0.3, "the nearest image": 0.5}


@pytest.mark.parametrize(
    ("metric", "fitted", "best"),
    [
        ("accuracy", {}, ("the nearest image", 0.5)),
        ("explained", {"seen": 0.6}, ("seen", 0.6)),
        ("bits", {"seen": 0.4}, ("a guess by position", 0.3)),
        ("bits", {"seen": 0.1}, ("seen", 0.1)),
    ],
)
def test_rows_have_each_shortcut_and_the_best(metric: str, fitted: dict[str, float], best: tuple[str, float]) -> None:
    baselines = Baselines(chance=0.1, majority=0.2, shortcuts=SCORES, caveat="Nothing is shown.")
    columns = shortcuts.make_columns(baselines, fitted, metric)
    assert columns == {
        "train.chance": 0.1,
        "train.majority": 0.2,
        "train.shortcut_a_guess_by_position": 0.3,
        "train.shortcut_the_nearest_image": 0.5,
        **({"train.shortcut_seen": fitted["seen"]} if fitted else {}),
        "train.shortcut": best[1],
        "train.way": best[0],
        "train.caveat": "Nothing is shown.",
        "train.note": None,
    }


def test_rows_without_shortcuts_have_no_caveat() -> None:
    columns = shortcuts.make_columns(Baselines(chance=0.1, majority=0.2), {}, "accuracy")
    assert (columns["train.shortcut"], columns["train.way"], columns["train.caveat"]) == (None, None, None)
    assert len(columns) == 6


def test_rows_have_the_note_on_examples() -> None:
    baselines = Baselines(chance=0.1, majority=0.2, note="Tests are short.")
    assert shortcuts.make_columns(baselines, {}, "accuracy")["train.note"] == "Tests are short."


@pytest.mark.parametrize("shortest", [None, 8])
def test_shortcuts_are_fitted_to_the_examples_of_training(shortest: int | None) -> None:
    """In the same order, also if their lengths differ."""
    drawn: list[list[Any]] = [[], []]
    phase = 0

    def draw(*args: Any) -> Batch:
        batch = tiny.TINY.draw(*args)
        if args[-1] == "train":
            drawn[phase].append(batch.inputs)
        return batch

    def fit(keys: Any, batches: Iterable[Batch]) -> dict[str, float]:
        return {"the number of tokens": float(sum(batch.inputs.size for batch in batches))}

    problem, keys = replace(tiny.TINY, draw=draw, fit_shortcuts=fit), tiny.keys(shortest=shortest, pairs=1)
    trained = tiny.train(problem=problem, given=keys, index=1).run()
    phase = 1
    fitted = shortcuts.fit_shortcuts(problem, keys, tiny.LENGTH, 1, trained.progress.step)
    assert len(drawn[0]) == len(drawn[1]) == tiny.STEPS
    assert all(np.array_equal(a, b) for a, b in zip(*drawn, strict=True))
    assert fitted == {"the number of tokens": sum(inputs.size for inputs in drawn[0])}
    assert shortcuts.fit_shortcuts(problem, keys, tiny.LENGTH, 1, trained.progress.step) is fitted  # computed once
    other_attempt = keys.model_copy(update={"attempt": (("kind", "above"),)})
    assert shortcuts.fit_shortcuts(problem, other_attempt, tiny.LENGTH, 1, trained.progress.step) is fitted
    assert shortcuts.compute_baselines(problem, keys, 8) is shortcuts.compute_baselines(problem, other_attempt, 8)
    shortcuts.fit_shortcuts(problem, keys, tiny.LENGTH, 0, 1)
    assert not np.array_equal(drawn[1][-1], drawn[1][0])  # another seed


def test_rows_have_the_shortcuts_of_the_problem_and_of_its_training() -> None:
    fitted = replace(tiny.TINY, name="tiny", fit_shortcuts=lambda keys, batches: {"batches": float(len(list(batches)))})
    text = tiny_suites.TINY.replace('"forward"', '"tiny"').replace("dims ", "vocab = 32\npairs = 2\nsteps = 3\n#")
    with tiny_suites.isolated_registry():
        register_task(make_task(fitted))
        (record,) = measure_cases(tiny_suites.plan(text)[:1])
    extra = record.row.extra
    assert (extra["train.shortcut_batches"], extra["train.shortcut"], extra["train.way"]) == (3, 3, "batches")
    (score,) = fitted.baselines(tiny.keys(), 16).shortcuts.values()
    assert extra["train.shortcut_the_pair_most_frequent_at_the_position"] == score


def test_problems_without_fitted_shortcuts_draw_nothing() -> None:
    def draw(*args: Any) -> Batch:
        raise AssertionError

    assert shortcuts.fit_shortcuts(replace(tiny.TINY, draw=draw), tiny.keys(), tiny.LENGTH, 0, 5) == {}


def test_baselines_are_computed_once() -> None:
    calls: list[int] = []

    def compute(keys: Any, length: int) -> Baselines:
        calls.append(length)
        return Baselines(chance=0.1, majority=0.1)

    problem = replace(tiny.TINY, baselines=compute)
    for length in (16, 16, 24, 16):
        shortcuts.compute_baselines(problem, tiny.keys(), length)
    assert calls == [16, 24]
