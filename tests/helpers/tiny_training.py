"""Problems that are small enough to train in tests, and interruptions of their training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from efficient_attn.tasks.problems.mqar import MQAR, MqarKeys
from efficient_attn.tasks.training.learners import make_learner
from efficient_attn.tasks.training.loop import Trainer, TrainingResult, TrainingSetup
from efficient_attn.tasks.training.problem import LearnKeys, Problem

LENGTH = 16
TINY = replace(MQAR, recipe=replace(MQAR.recipe, d_model=16, heads=2, steps=8, batch=4))
STEPS = TINY.recipe.steps
NEVER_LEARNED = 1.0  # as trivial score: training takes all steps


def keys(**changed: Any) -> MqarKeys:
    return MqarKeys(**{"vocab": 32, "pairs": 2, "examples": 8, **changed})


def train(
    path: Path | None = None,
    *,
    variant: str = "full",
    problem: Problem = TINY,
    given: LearnKeys | None = None,
    index: int = 0,
    rate: float = 2e-3,
    steps: int | None = None,
    trivial_score: float = NEVER_LEARNED,
) -> Trainer:
    """A trainer that is ready to start or to continue from a checkpoint."""
    given = given or keys()
    learner = make_learner(problem, given, variant, length=LENGTH + 1, seed=index)
    return Trainer(
        learner,
        TrainingSetup(
            problem=problem,
            keys=given,
            length=LENGTH,
            index=index,
            rate=rate,
            trivial_score=trivial_score,
            steps=steps,
        ),
        path,
    )


def found(training: Trainer, trained: TrainingResult) -> tuple[Any, ...]:
    """All results except seconds, for comparison bit by bit."""
    progress = trained.progress
    weights = {name: x.numpy().tobytes() for name, x in training.learner.model.state_dict().items()}
    curves = progress.losses, progress.scores, progress.step, progress.steps, progress.stopped, progress.decay_from
    return (*curves, trained.counts, trained.at_length, trained.within_distance, weights)


class Stopped(Exception):
    """Training was interrupted."""


def stop_after(count: int) -> Callable[[], None]:
    """An ``at`` callback that raises after so many calls."""
    calls = 0

    def at() -> None:
        nonlocal calls
        calls += 1
        if calls > count:
            raise Stopped

    return at
