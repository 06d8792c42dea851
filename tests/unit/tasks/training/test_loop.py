"""Training: reproducible results, also after interruptions; examples, validations and early stops."""

from __future__ import annotations

import errno
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_training as tiny
import torch

from efficient_attn.bench.measuring.row_errors import InvalidResult
from efficient_attn.errors import UsageError
from efficient_attn.registry import info, names
from efficient_attn.results import durable
from efficient_attn.tasks.training import loop
from efficient_attn.tasks.training.checkpoint import CheckpointNotSaved
from efficient_attn.tasks.training.loop import (
    MAX_GRADIENT_NORM,
    MAX_VALIDATIONS,
    TrainingSetup,
    compute_rate_factor,
    draw,
    split_batch,
)
from efficient_attn.tasks.training.problem import Batch, Split

OFTEN = tiny.keys(checkpoint_s=1e-9)  # a checkpoint after every step


def _run(**options: Any) -> tuple[Any, ...]:
    training = tiny.train(**options)
    return tiny.found(training, training.run())


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[Any, ...]:
    return _run()


def _setup(**changed: Any) -> TrainingSetup:
    return replace(
        TrainingSetup(problem=tiny.TINY, keys=tiny.keys(), length=tiny.LENGTH, index=0, rate=1e-3), **changed
    )


# -- reproducibility -------------------------------------------------------------------------------------------------


def test_results_are_determined_by_the_seed(uninterrupted: tuple[Any, ...]) -> None:
    torch.manual_seed(7)  # nothing is drawn from torch
    assert _run() == uninterrupted
    assert _run(index=1)[0] != uninterrupted[0]


@pytest.mark.parametrize("count", range(tiny.STEPS + 2))  # before each step, and between tests
def test_interrupted_training_gives_the_same_result(count: int, uninterrupted: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "checkpoint"
    with pytest.raises(tiny.Stopped):
        tiny.train(path, given=OFTEN).run(tiny.stop_after(count))
    training = tiny.train(path, given=OFTEN)
    assert training.progress.step == min(count, tiny.STEPS)  # it continued
    assert tiny.found(training, training.run()) == uninterrupted


def test_an_older_checkpoint_gives_the_same_result(
    uninterrupted: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()  # each reading is a second later
    monkeypatch.setattr(loop, "perf_counter", lambda: float(next(clock)))
    seldom = tiny.keys(checkpoint_s=8.0)
    with pytest.raises(tiny.Stopped):
        tiny.train(tmp_path / "one", given=seldom).run(tiny.stop_after(5))
    training = tiny.train(tmp_path / "one", given=seldom)
    assert 0 < training.progress.step < 5
    assert tiny.found(training, training.run()) == uninterrupted


CAUSAL = [name for name in names() if info(name).traits.causal]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("variant", CAUSAL)
def test_each_causal_mechanism_continues_from_its_checkpoint(variant: str, tmp_path: Path) -> None:
    """The checkpoint contains everything that persists from step to step."""
    short = {"variant": variant, "given": OFTEN, "steps": 4}
    whole = _run(**short)
    with pytest.raises(tiny.Stopped):
        tiny.train(tmp_path / "one", **short).run(tiny.stop_after(2))
    assert tiny.train(tmp_path / "one", **short).progress.step == 2
    assert _run(path=tmp_path / "one", **short) == whole


# -- unusable checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"variant": "general"}, {"rate": 1e-3}, {"index": 1}, {"steps": 7}])
def test_checkpoints_of_other_setups_are_ignored(other: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "one"
    tiny.train(path, **other).run()
    training = tiny.train(path)
    assert training.progress.step == 0
    assert tiny.found(training, training.run()) == _run()


def test_a_full_disk_is_reported_and_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one"
    with pytest.raises(tiny.Stopped):
        tiny.train(path, given=OFTEN).run(tiny.stop_after(3))
    before = path.read_bytes()

    def refuse(file: int, data: bytes, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "_write", refuse)
    with pytest.raises(CheckpointNotSaved) as caught:
        tiny.train(path, given=OFTEN).run()
    assert str(caught.value) == (
        f"{path}: no checkpoint can be written: No space left on device; "
        "free some space and continue with --resume --retry-failed"
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# -- time budget -----------------------------------------------------------------------------------------------------


def test_time_budgets_become_steps_without_side_effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = itertools.count(), 1.0
    monkeypatch.setattr(loop, "perf_counter", lambda: pace * next(clock))
    timed = tiny.keys(seconds=5.5)
    fresh = tiny.train(given=timed, steps=3)
    weights = {name: x.clone() for name, x in fresh.learner.model.state_dict().items()}
    rng_state = torch.get_rng_state()
    training = tiny.train(tmp_path / "one", given=timed)
    assert training.progress == loop.Progress(5)  # a step took a second
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert not training.optimizer.state
    assert all(parameter.grad is None for parameter in training.learner.model.parameters())
    now = training.learner.model.state_dict()
    assert all(torch.equal(now[name], x) for name, x in weights.items())
    pace = 0.01  # a faster machine
    again = tiny.train(tmp_path / "one", given=timed)
    assert again.progress.steps == 5
    assert tiny.found(again, again.run()) == _run(steps=5)
    assert tiny.train(tmp_path / "one", given=timed).progress.step == 5


def test_given_steps_override_the_time_budget() -> None:
    assert tiny.train(given=tiny.keys(seconds=1000.0), steps=3).progress.steps == 3


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_nan_loss_is_reported_with_step_and_rate() -> None:
    training = tiny.train(rate=0.25)
    step = training._step

    def spoil(n: int) -> float:
        if n == 5:
            with torch.no_grad():
                next(iter(training.learner.model.parameters())).fill_(math.nan)
        return step(n)

    training._step = spoil  # type: ignore[method-assign]
    with pytest.raises(InvalidResult, match=r"^the loss is nan at step 6, at learning rate 0\.25$"):
        training.run()


def test_infinite_weights_after_the_last_step_are_detected() -> None:
    training = tiny.train(rate=0.25, steps=1)
    training.optimizer.step = lambda: [p.data.fill_(math.inf) for p in training.learner.model.parameters()]  # type: ignore
    with pytest.raises(InvalidResult, match=r"^the loss on validation is nan after step 1, at learning rate 0\.25$"):
        training.run()


def test_labels_outside_the_classes_are_refused() -> None:
    def wrong(*args: Any) -> Batch:
        batch = tiny.TINY.draw(*args)
        return replace(batch, targets=np.where(batch.targets >= 0, 99, batch.targets))

    with pytest.raises(UsageError, match=r"^predict_masked: label 99 is outside of 32 classes$"):
        tiny.train(problem=replace(tiny.TINY, draw=wrong)).run()


# -- examples --------------------------------------------------------------------------------------------------------


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


# -- validations and early stops -------------------------------------------------------------------------------------


def test_validations_are_evenly_spaced_and_include_the_last_step() -> None:
    progress = tiny.train(steps=MAX_VALIDATIONS + 7).run().progress
    validations = [step for step, _ in progress.scores]
    assert validations == [*range(2, MAX_VALIDATIONS + 7, 2), MAX_VALIDATIONS + 7]
    assert [step for step, _ in progress.losses] == validations
    assert progress.running == []


def test_training_stops_when_the_problem_is_solved() -> None:
    easy = replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, solved=0.0))
    progress = tiny.train(problem=easy).run().progress
    assert (progress.step, progress.stopped, progress.steps) == (1, "solved", tiny.STEPS)
    assert tiny.train().run().progress.stopped is None


def test_solved_training_is_not_continued(tmp_path: Path) -> None:
    easy = replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, solved=0.0))
    first = tiny.train(tmp_path / "one", problem=easy)
    whole = tiny.found(first, first.run())
    again = tiny.train(tmp_path / "one", problem=easy)
    assert tiny.found(again, again.run()) == whole


def test_a_problem_in_bits_is_solved_below_its_bound() -> None:
    bits = replace(tiny.TINY, metric="bits", recipe=replace(tiny.TINY.recipe, solved=100.0))
    assert tiny.train(problem=bits).run().progress.step == 1
    hard = replace(bits, recipe=replace(bits.recipe, solved=0.0))
    assert tiny.train(problem=hard).run().progress.step == tiny.STEPS


def test_the_rate_rises_linearly_and_decays_to_almost_zero() -> None:
    rates = [compute_rate_factor(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (n + 1) for n in range(10)])
    assert max(rates) == rates[9] == rates[10] == 1
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[-1] < 1e-3
    assert compute_rate_factor(0, 1) == 1


def test_optimizer_follows_the_schedule_and_clips_gradients() -> None:
    training, rates, norms = tiny.train(rate=0.01), [], []
    step = training.optimizer.step

    def record() -> None:
        rates.append(training.optimizer.param_groups[0]["lr"])
        gradients = [p.grad for p in training.learner.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        step()

    training.optimizer.step = record  # type: ignore[method-assign]
    training.run()
    assert rates == [0.01 * compute_rate_factor(n, tiny.STEPS) for n in range(tiny.STEPS)]
    assert max(norms) == pytest.approx(MAX_GRADIENT_NORM, rel=1e-4)  # gradients are larger at first
