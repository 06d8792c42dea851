"""Problems that are small enough to train in tests, and interruptions of their training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tiny_suites

from efficient_attn.bench import session as session_module
from efficient_attn.bench.measuring import scratch
from efficient_attn.bench.planning.plan import make_plan
from efficient_attn.bench.run import RunOutcome, run
from efficient_attn.bench.task_registry import register_task
from efficient_attn.registry import names
from efficient_attn.results.rows import Record
from efficient_attn.tasks.problems.mqar import MQAR, MqarKeys
from efficient_attn.tasks.training.learners import make_learner
from efficient_attn.tasks.training.learning import make_task
from efficient_attn.tasks.training.loop import Trainer, TrainingResult, TrainingSetup
from efficient_attn.tasks.training.problem import LearnKeys, Problem

LENGTH = 16
TINY = replace(MQAR, recipe=replace(MQAR.recipe, d_model=16, heads=2, steps=8, batch=4))
NAMED = replace(TINY, name="tiny")  # as suites name it
TIMES = "train.train_s", "train.step_ms", "train.s_to_90"
STEPS = TINY.recipe.steps
VARIANTS = [{"dsa": "dsa:index_heads=2:index_dim=4"}.get(name, name) for name in names()]  # that fit TINY's width
NEVER_LEARNED = 1.0  # as trivial score: training takes all steps


def keys(**changed: Any) -> MqarKeys:
    return MqarKeys(**{"vocab": 32, "pairs": 2, "examples": 8, **changed})


@contextmanager
def registered() -> Iterator[None]:
    """The tiny task is registered, and the machine is not inspected."""
    with tiny_suites.isolated_registry(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "_inspect", lambda device, planned, conditions: {"device": device})
        register_task(make_task(NAMED))
        yield
    scratch.set_folder(None)


def run_inline(folder: Path, text: str, **options: Any) -> RunOutcome:
    """Run a suite in this process."""
    loaded = tiny_suites.parse(text)
    return run(loaded, make_plan(loaded), folder, start_method="inline", **options)


def make_comparable(records: Iterable[Record]) -> list[Any]:
    """Rows and samples without times and run ids."""
    comparable = []
    for record in records:
        extra = {name: value for name, value in record.row.extra.items() if name not in TIMES}
        comparable.append((asdict(record.row) | {"extra": extra, "run_id": None}, record.samples))
    return comparable


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
