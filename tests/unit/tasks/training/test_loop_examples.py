"""Examples of training: which batch belongs to a split, seed, step and length."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_training as tiny

from efficient_attn.tasks.training.loop import TrainingSetup, draw, split_batch
from efficient_attn.tasks.training.problem import Batch, Split


def _setup(**changed: Any) -> TrainingSetup:
    return replace(
        TrainingSetup(
            problem=tiny.TINY,
            keys=tiny.keys(),
            length=tiny.LENGTH,
            index=0,
            rate=1e-3,
            trivial_score=0.1,
        ),
        **changed,
    )


def _same(a: Batch, b: Batch) -> bool:
    return a.inputs.shape == b.inputs.shape and bool((a.inputs == b.inputs).all() and (a.targets == b.targets).all())


@pytest.mark.parametrize("split", ["validation", "test"])
def test_all_seeds_are_evaluated_on_the_same_examples(split: Split) -> None:
    first, other = (draw(_setup(index=index, rate=rate), split, 6, 0) for index, rate in ((0, 1e-3), (2, 1e-2)))
    assert _same(first, other)


def test_batches_depend_on_split_seed_and_step() -> None:
    drawn = {(s, i, n): draw(_setup(index=i), s, 6, n) for s in ("train",) for i in (0, 1) for n in (0, 1)}
    drawn |= {(s, 0, 0): draw(_setup(), s, 6, 0) for s in ("validation", "test")}  # type: ignore[misc]
    assert not any(_same(a, b) for a, b in itertools.combinations(drawn.values(), 2))
    assert _same(drawn["train", 1, 1], draw(_setup(index=1, rate=0.1, steps=99), "train", 6, 1))


def test_shortest_varies_only_the_length_of_training_batches() -> None:
    setup = _setup(keys=tiny.keys(pairs=1, shortest=14), problem=replace(tiny.TINY, draw=_any_length))
    lengths = [draw(setup, "train", 2, step).inputs.shape[1] for step in range(40)]
    assert set(lengths) == {14, 15, 16}
    assert lengths == [draw(setup, "train", 2, step).inputs.shape[1] for step in range(40)]
    assert draw(setup, "validation", 2, 0).inputs.shape[1] == draw(setup, "test", 2, 0).inputs.shape[1] == 16


def _any_length(keys: Any, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    tokens = generator.integers(4, size=(count, length))
    return Batch(tokens, tokens)


def test_parts_of_a_batch_contain_each_example_once() -> None:
    batch = draw(_setup(), "test", 7, 0)
    parts = list(split_batch(batch, 3))
    assert [len(part.inputs) for part in parts] == [3, 3, 1]
    assert (np.concatenate([part.targets for part in parts]) == batch.targets).all()
    assert batch.distance is not None
    assert (np.concatenate([part.distance for part in parts if part.distance is not None]) == batch.distance).all()


def test_results_are_counted_by_length_and_by_distance() -> None:
    training = tiny.train(given=tiny.keys(test_len=(8, tiny.LENGTH)), steps=2)
    trained = training.run()
    assert list(trained.at_length) == [8]
    assert trained.at_length[8].targets == trained.counts.targets == 8 * 2
    assert sum(part.targets for part in trained.within_distance.values()) == trained.counts.targets
    assert sum(part.correct for part in trained.within_distance.values()) == trained.counts.correct
    distance = draw(training.setup, "test", 8, 0).distance
    assert distance is not None
    for edge, part in trained.within_distance.items():
        assert part.targets == ((distance > edge // 2) & (distance <= edge)).sum()
