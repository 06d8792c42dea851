"""Training: reproducible results, also after interruptions; examples, validations and early stops."""

from __future__ import annotations

import errno
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_training as tiny
import torch

from efficient_attn.bench.measuring.row_errors import InvalidResult
from efficient_attn.errors import UsageError
from efficient_attn.registry import info
from efficient_attn.results import durable
from efficient_attn.tasks.training import loop, plateau
from efficient_attn.tasks.training.checkpoint import CheckpointNotSaved
from efficient_attn.tasks.training.loop import (
    MAX_GRADIENT_NORM,
    MAX_VALIDATIONS,
    compute_rate_factor,
    count_steps,
)
from efficient_attn.tasks.training.problem import Batch, Split

OFTEN = tiny.keys(checkpoint_s=1e-9)  # a checkpoint after every step


def _run(**options: Any) -> tuple[Any, ...]:
    training = tiny.train(**options)
    return tiny.found(training, training.run())


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[Any, ...]:
    return _run()


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
    seldom = tiny.keys(checkpoint_s=2.5)
    with pytest.raises(tiny.Stopped):
        tiny.train(tmp_path / "one", given=seldom).run(tiny.stop_after(5))
    training = tiny.train(tmp_path / "one", given=seldom)
    assert 0 < training.progress.step < 5
    assert tiny.found(training, training.run()) == uninterrupted


def test_waiting_is_not_counted_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    training = tiny.train(None)
    step = training._step

    def wait_and_step(index: int) -> float:
        time.sleep(0.2)
        return step(index)

    monkeypatch.setattr(training, "_step", wait_and_step)
    training.run()
    assert 0 < training.progress.train_s < 0.2 * training.progress.step


CAUSAL = [variant for variant in tiny.VARIANTS if info(variant).traits.causal]


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


# -- validations and early stops -------------------------------------------------------------------------------------


def test_validations_are_evenly_spaced_and_include_the_last_step() -> None:
    progress = tiny.train(steps=MAX_VALIDATIONS + 6).run().progress
    validations = [step for step, _ in progress.scores if step != progress.decay_from]
    assert progress.decay_from == MAX_VALIDATIONS - 3  # 0.8 * 46, rounded up
    assert validations == [*range(2, MAX_VALIDATIONS + 6, 2), MAX_VALIDATIONS + 6]
    assert [step for step, _ in progress.losses] == [step for step, _ in progress.scores]
    assert len(progress.seconds) == len(progress.scores)
    assert progress.seconds == sorted(progress.seconds)
    assert progress.running == []


def test_training_stops_when_the_problem_is_solved() -> None:
    easy = replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, solved=0.0))
    progress = tiny.train(problem=easy).run().progress
    assert (progress.step, progress.stopped, progress.steps) == (1, plateau.SOLVED, tiny.STEPS)
    assert tiny.train().run().progress.stopped == plateau.NOT_LEARNED


def _score(trainer: Any, curve: Callable[[int], float]) -> None:
    """Make the scores on validation those of a curve."""
    evaluate = trainer._evaluate

    def pretend(split: Split, *arguments: Any) -> Any:
        counts, others = evaluate(split, *arguments)
        correct = round(1000 * curve(trainer.progress.step))
        return (replace(counts, correct=correct, targets=1000), others) if split == "validation" else (counts, others)

    trainer._evaluate = pretend


@pytest.mark.parametrize(
    ("curve", "steps", "stopped"),
    [
        (lambda step: 0.5, 38, loop.LEVELLED_OFF),  # 30 is a quarter of 120; then the decay
        (lambda step: step / 200, 120, plateau.STILL_IMPROVING),
        (lambda step: 0.01, 120, plateau.NOT_LEARNED),
        (lambda step: 0.01 if step < 48 else 0.6, 113, loop.LEVELLED_OFF),  # at 90, as 0.5 * 90 >= 45
        (lambda step: 0.5 if step < 36 else 1.0, 36, plateau.SOLVED),  # during the decay
    ],
)
def test_training_ends_when_validation_has_levelled_off(
    curve: Callable[[int], float], steps: int, stopped: str
) -> None:
    training = tiny.train(steps=120, trivial_score=1 / 16)
    _score(training, curve)
    progress = training.run().progress
    assert (progress.step, progress.stopped, progress.steps) == (steps, stopped, 120)
    if stopped != plateau.SOLVED:
        assert progress.decay_from is not None
        assert progress.step == min(120, math.ceil(progress.decay_from / 0.8))


@pytest.mark.parametrize("count", [29, 30, 31, 37])  # around the beginning and the end of the decay
def test_training_interrupted_around_the_decay_gives_the_same_result(count: int, tmp_path: Path) -> None:
    def train(path: Path | None = None) -> Any:
        training = tiny.train(path, given=OFTEN, steps=120, trivial_score=1 / 16)
        _score(training, lambda step: 0.5)
        return training

    whole, interrupted = train(), train(tmp_path / "one")
    expected = tiny.found(whole, whole.run())
    with pytest.raises(tiny.Stopped):
        interrupted.run(tiny.stop_after(count))
    again = train(tmp_path / "one")
    assert tiny.found(again, again.run()) == expected


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


def test_the_rate_rises_linearly_is_constant_and_decays_to_almost_zero() -> None:
    rates = [compute_rate_factor(step, 200, 80) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (n + 1) for n in range(10)])
    assert rates[10:81] == [1] * 71
    assert rates[80:] == pytest.approx([1 - n / 20 for n in range(20)])
    assert compute_rate_factor(150, 200) == 1  # until the decay begins
    assert compute_rate_factor(0, 1) == 1


@pytest.mark.parametrize(("decay_from", "steps"), [(None, 200), (80, 100), (160, 200), (190, 200), (1, 2)])
def test_the_decay_takes_a_fifth_of_the_steps(decay_from: int | None, steps: int) -> None:
    assert count_steps(200, decay_from) == steps


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
    assert rates == [0.01 * compute_rate_factor(n, tiny.STEPS, tiny.STEPS - 1) for n in range(tiny.STEPS)]
    assert max(norms) == pytest.approx(MAX_GRADIENT_NORM, rel=1e-4)  # gradients are larger at first


def test_kernels_are_deterministic_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", loop.CUBLAS_WORKSPACE)
    for device, expected in (("cuda", True), ("cpu", False)):
        with loop._use_deterministic_kernels(device):  # pyright: ignore[reportPrivateUsage]
            assert torch.are_deterministic_algorithms_enabled() is expected
        assert not torch.are_deterministic_algorithms_enabled()
