"""Training: the same bits for the same seed, stopped or not; what it draws, when it looks, and how it ends early."""

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

from efficient_attn.bench.measuring.output_comparison import InvalidResult
from efficient_attn.errors import UsageError
from efficient_attn.registry import info, names
from efficient_attn.results import durable
from efficient_attn.tasks.training import loop
from efficient_attn.tasks.training.checkpoint import CheckpointNotSaved, read
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


def _run(**how: Any) -> tuple[Any, ...]:
    training = tiny.train(**how)
    return tiny.found(training, training.run())


@pytest.fixture(scope="module")
def undisturbed() -> tuple[Any, ...]:
    return _run()


def _order(**changed: Any) -> TrainingSetup:
    return replace(
        TrainingSetup(problem=tiny.TINY, keys=tiny.keys(), length=tiny.LENGTH, index=0, rate=1e-3), **changed
    )


# -- the same bits ---------------------------------------------------------------------------------------------------


def test_a_seed_decides_every_bit(undisturbed: tuple[Any, ...]) -> None:
    torch.manual_seed(7)  # nothing is drawn from torch
    assert _run() == undisturbed
    assert _run(index=1)[0] != undisturbed[0]


@pytest.mark.parametrize("count", range(tiny.STEPS + 2))  # before each step, and between tests
def test_what_was_stopped_anywhere_goes_on_as_if_it_had_not_been(
    count: int, undisturbed: tuple[Any, ...], tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "checkpoint"
    with pytest.raises(tiny.Stopped):
        tiny.train(path, given=OFTEN).run(tiny.stop_after(count))
    training = tiny.train(path, given=OFTEN)
    assert training.progress.step == min(count, tiny.STEPS)  # it did go on
    assert tiny.found(training, training.run()) == undisturbed


def test_what_was_saved_long_ago_does_as_well(
    undisturbed: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count()  # a second a glance
    monkeypatch.setattr(loop, "perf_counter", lambda: float(next(clock)))
    seldom = tiny.keys(checkpoint_s=8.0)
    with pytest.raises(tiny.Stopped):
        tiny.train(tmp_path / "one", given=seldom).run(tiny.stop_after(5))
    training = tiny.train(tmp_path / "one", given=seldom)
    assert 0 < training.progress.step < 5
    assert tiny.found(training, training.run()) == undisturbed


CAUSAL = [name for name in names() if info(name).traits.causal]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("variant", CAUSAL)
def test_every_mechanism_goes_on_from_its_checkpoint(variant: str, tmp_path: Path) -> None:
    """What it learns is in the checkpoint, and it keeps nothing else from step to step."""
    short = {"variant": variant, "given": OFTEN, "steps": 4}
    whole = _run(**short)
    with pytest.raises(tiny.Stopped):
        tiny.train(tmp_path / "one", **short).run(tiny.stop_after(2))
    assert tiny.train(tmp_path / "one", **short).progress.step == 2
    assert _run(path=tmp_path / "one", **short) == whole


# -- checkpoints that cannot be trusted ------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [{"variant": "general"}, {"rate": 1e-3}, {"index": 1}, {"steps": 7}])
def test_a_checkpoint_of_another_training_is_not_gone_on_from(other: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "one"
    tiny.train(path, **other).run()
    training = tiny.train(path)
    assert training.progress.step == 0
    assert tiny.found(training, training.run()) == _run()


def test_a_disk_without_room_is_one_line_and_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one"
    with pytest.raises(tiny.Stopped):
        tiny.train(path, given=OFTEN).run(tiny.stop_after(3))
    before = path.read_bytes()

    def refuse(file: int, data: bytes, **how: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "_write", refuse)
    with pytest.raises(CheckpointNotSaved) as told:
        tiny.train(path, given=OFTEN).run()
    assert str(told.value) == (
        f"{path}: no checkpoint can be written: No space left on device; "
        "free some space and continue with --resume --retry-failed"
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# -- a budget of seconds ---------------------------------------------------------------------------------------------


def test_seconds_become_steps_once_and_measuring_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, pace = itertools.count(), 1.0
    monkeypatch.setattr(loop, "perf_counter", lambda: pace * next(clock))
    timed = tiny.keys(seconds=5.5)
    fresh = tiny.train(given=timed, steps=3)
    weights = {name: x.clone() for name, x in fresh.learner.model.state_dict().items()}
    random = torch.get_rng_state()
    training = tiny.train(tmp_path / "one", given=timed)
    assert training.progress == loop.Progress(5)  # a step took a second
    assert torch.equal(torch.get_rng_state(), random)
    assert not training.optimizer.state
    assert all(parameter.grad is None for parameter in training.learner.model.parameters())
    now = training.learner.model.state_dict()
    assert all(torch.equal(now[name], x) for name, x in weights.items())
    pace = 0.01  # a faster machine, or a moment without others
    again = tiny.train(tmp_path / "one", given=timed)
    assert again.progress.steps == 5
    assert tiny.found(again, again.run()) == _run(steps=5)
    assert read(tmp_path / "one", again.setup.description) is not None


def test_steps_that_an_earlier_attempt_settled_are_not_measured() -> None:
    assert tiny.train(given=tiny.keys(seconds=1000.0), steps=3).progress.steps == 3


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_with_its_step_and_rate() -> None:
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


def test_weights_that_the_last_step_spoiled_are_found_on_validation() -> None:
    training = tiny.train(rate=0.25, steps=1)
    training.optimizer.step = lambda: [p.data.fill_(math.inf) for p in training.learner.model.parameters()]  # type: ignore
    with pytest.raises(InvalidResult, match=r"^the loss on validation is nan after step 1, at learning rate 0\.25$"):
        training.run()


def test_a_label_outside_of_the_classes_is_one_line() -> None:
    def wrong(*given: Any) -> Batch:
        batch = tiny.TINY.draw(*given)
        return replace(batch, targets=np.where(batch.targets >= 0, 99, batch.targets))

    with pytest.raises(UsageError, match=r"^predict_masked: label 99 is outside of 32 classes$"):
        tiny.train(problem=replace(tiny.TINY, draw=wrong)).run()


# -- examples --------------------------------------------------------------------------------------------------------


def _same(a: Batch, b: Batch) -> bool:
    return a.inputs.shape == b.inputs.shape and bool((a.inputs == b.inputs).all() and (a.targets == b.targets).all())


@pytest.mark.parametrize("split", ["validation", "test"])
def test_all_seeds_are_judged_by_the_same_examples(split: Split) -> None:
    first, other = (draw(_order(index=index, rate=rate), split, 6, 0) for index, rate in ((0, 1e-3), (2, 1e-2)))
    assert _same(first, other)


def test_splits_are_apart_and_a_batch_is_a_matter_of_seed_and_step() -> None:
    drawn = {(s, i, n): draw(_order(index=i), s, 6, n) for s in ("train",) for i in (0, 1) for n in (0, 1)}
    drawn |= {(s, 0, 0): draw(_order(), s, 6, 0) for s in ("validation", "test")}  # type: ignore[misc]
    assert not any(_same(a, b) for a, b in itertools.combinations(drawn.values(), 2))
    assert _same(drawn["train", 1, 1], draw(_order(index=1, rate=0.1, steps=99), "train", 6, 1))


def test_shortest_draws_a_length_for_each_batch_of_training_alone() -> None:
    order = _order(keys=tiny.keys(pairs=1, shortest=14), problem=replace(tiny.TINY, draw=_any_length))
    lengths = [draw(order, "train", 2, step).inputs.shape[1] for step in range(40)]
    assert set(lengths) == {14, 15, 16}
    assert lengths == [draw(order, "train", 2, step).inputs.shape[1] for step in range(40)]
    assert draw(order, "validation", 2, 0).inputs.shape[1] == draw(order, "test", 2, 0).inputs.shape[1] == 16


def _any_length(keys: Any, length: int, count: int, generator: np.random.Generator, split: Split) -> Batch:
    tokens = generator.integers(4, size=(count, length))
    return Batch(tokens, tokens)


def test_parts_of_a_batch_hold_all_of_it_once() -> None:
    batch = draw(_order(), "test", 7, 0)
    parts = list(split_batch(batch, 3))
    assert [len(part.inputs) for part in parts] == [3, 3, 1]
    assert (np.concatenate([part.targets for part in parts]) == batch.targets).all()
    assert batch.distance is not None
    assert (np.concatenate([part.distance for part in parts if part.distance is not None]) == batch.distance).all()


def test_other_lengths_are_tested_and_answers_are_identified_by_how_far_back_they_lie() -> None:
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


# -- when it looks, and when it stops --------------------------------------------------------------------------------


def test_looks_are_few_and_even_and_the_last_one_is_at_the_end() -> None:
    progress = tiny.train(steps=MAX_VALIDATIONS + 7).run().progress
    looks = [step for step, _ in progress.scores]
    assert looks == [*range(2, MAX_VALIDATIONS + 7, 2), MAX_VALIDATIONS + 7]
    assert [step for step, _ in progress.losses] == looks
    assert progress.running == []


def test_training_stops_when_it_is_solved() -> None:
    easy = replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, solved=0.0))
    progress = tiny.train(problem=easy).run().progress
    assert (progress.step, progress.stopped, progress.steps) == (1, "solved", tiny.STEPS)
    assert tiny.train().run().progress.stopped is None


def test_what_was_solved_is_not_trained_on_when_it_goes_on(tmp_path: Path) -> None:
    easy = replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, solved=0.0))
    first = tiny.train(tmp_path / "one", problem=easy)
    whole = tiny.found(first, first.run())
    again = tiny.train(tmp_path / "one", problem=easy)
    assert tiny.found(again, again.run()) == whole


def test_of_bits_fewer_are_the_better_ones() -> None:
    bits = replace(tiny.TINY, metric="bits", recipe=replace(tiny.TINY.recipe, solved=100.0))
    assert tiny.train(problem=bits).run().progress.step == 1
    hard = replace(bits, recipe=replace(bits.recipe, solved=0.0))
    assert tiny.train(problem=hard).run().progress.step == tiny.STEPS


def test_the_rate_rises_in_a_line_and_falls_to_nearly_nothing() -> None:
    rates = [compute_rate_factor(step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (n + 1) for n in range(10)])
    assert max(rates) == rates[9] == rates[10] == 1
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[-1] < 1e-3
    assert compute_rate_factor(0, 1) == 1


def test_the_optimizer_has_the_rate_of_the_schedule_and_gradients_are_clipped() -> None:
    training, rates, norms = tiny.train(rate=0.01), [], []
    step = training.optimizer.step

    def watch() -> None:
        rates.append(training.optimizer.param_groups[0]["lr"])
        gradients = [p.grad for p in training.learner.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        step()

    training.optimizer.step = watch  # type: ignore[method-assign]
    training.run()
    assert rates == [0.01 * compute_rate_factor(n, tiny.STEPS) for n in range(tiny.STEPS)]
    assert max(norms) == pytest.approx(MAX_GRADIENT_NORM, rel=1e-4)  # these begin with larger ones
