"""Shortcuts: the scores of simple methods without attention, and the columns in which rows store them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from .problem import Baselines, LearnKeys, Problem

if TYPE_CHECKING:
    from .loop import TrainingSetup

PREFIX = "train.shortcut_"  # of the column of each method
Columns = dict[str, str | float | None]


def compute_baselines(problem: Problem, keys: LearnKeys, length: int) -> Baselines:
    """The baselines, computed once in a worker."""
    return _compute_baselines(problem, _without_attempt(keys), length)


def fit_shortcuts(problem: Problem, keys: LearnKeys, length: int, index: int, steps: int) -> dict[str, float]:
    """The shortcuts that are fitted to the examples of so many steps with a seed, which models with other mechanisms
    and learning rates saw too: computed once in a worker."""
    return _fit_shortcuts(problem, _without_attempt(keys), length, index, steps)


def _without_attempt(keys: LearnKeys) -> Any:
    """The same for all attempts, so that what does not depend on them is computed once."""
    return keys.model_copy(update={"attempt": ()})


@cache
def _compute_baselines(problem: Problem, keys: LearnKeys, length: int) -> Baselines:
    return problem.baselines(keys, length)


@cache
def _fit_shortcuts(problem: Problem, keys: LearnKeys, length: int, index: int, steps: int) -> dict[str, float]:
    from .loop import draw

    setup = make_drawing_setup(problem, keys, length, index)
    batches = (draw(setup, "train", setup.batch, step) for step in range(steps))
    return dict(problem.fit_shortcuts(keys, batches))


def make_drawing_setup(problem: Problem, keys: LearnKeys, length: int, index: int = 0) -> TrainingSetup:
    """A setup to draw the examples of a training with the seed of an index; no model is trained with it."""
    from .loop import TrainingSetup

    return TrainingSetup(problem=problem, keys=keys, length=length, index=index, rate=0.0, trivial_score=0.0)


def make_columns(baselines: Baselines, fitted: dict[str, float], metric: str) -> Columns:
    """Chance, majority, each shortcut, the best of them with its description, and notes. fitted: further shortcuts."""
    shortcuts = {**baselines.shortcuts, **fitted}
    columns: Columns = {"train.chance": baselines.chance, "train.majority": baselines.majority}
    columns |= {name_column(description): score for description, score in shortcuts.items()}
    choose = min if metric == "bits" else max
    way = choose(shortcuts, key=lambda description: shortcuts[description], default=None)
    best = None if way is None else shortcuts[way]
    columns |= {"train.shortcut": best, "train.way": way, "train.caveat": baselines.caveat if way else None}
    return columns | {"train.note": baselines.note}


def name_column(description: str) -> str:
    """The column of a shortcut: its description with underscores."""
    return PREFIX + description.replace(" ", "_")
