"""Further training of a model: its steps, schedule and examples, and interruptions within it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny
import torch

from efficient_attn.tasks.training import loop, plateau
from efficient_attn.tasks.training.loop import Trainer, draw


def _train(steps: int, *, path: Path | None = None, first_step: int = 7, problem: Any = tiny.TINY) -> Trainer:
    trainer = tiny.train(problem=problem)
    setup = replace(trainer.setup, steps=steps, uptrained="full, mean", first_step=first_step, trivial_score=0.1)
    return Trainer(trainer.learner, setup, path)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 40])
def test_all_steps_are_made_also_if_the_score_is_perfect_or_constant(steps: int) -> None:
    trainer = _train(steps, problem=replace(tiny.TINY, recipe=replace(tiny.TINY.recipe, solved=0.0)))
    result = trainer.run()
    assert (result.progress.step, result.progress.steps, result.progress.stopped) == (steps, steps, plateau.UPTRAINED)
    assert result.progress.scores[-1][0] == steps
    assert len(result.progress.scores) <= 2  # nothing is selected by them


def test_without_steps_a_model_is_only_scored() -> None:
    trainer = _train(0)
    before = {name: x.clone() for name, x in trainer.learner.model.state_dict().items()}
    result = trainer.run()
    assert all(torch.equal(before[name], x) for name, x in trainer.learner.model.state_dict().items())
    assert ([step for step, _ in result.progress.scores], result.progress.losses) == ([0], [])
    assert result.counts == trainer._evaluate("test", tiny.LENGTH, 8, lambda: None)[0]


def test_the_rate_warms_up_stays_and_decays_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, rates = _train(40), []
    step = trainer.optimizer.step

    def record(*args: Any) -> Any:
        rates.append(trainer.optimizer.param_groups[0]["lr"] / trainer.setup.rate)
        return step(*args)

    monkeypatch.setattr(trainer.optimizer, "step", record)
    trainer.run()
    assert rates[:2] == [0.5, 1.0]
    assert rates[2:33] == [1.0] * 31
    assert rates[33:] == pytest.approx([n / 8 for n in range(7, 0, -1)])


def test_examples_follow_those_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, steps = _train(3, first_step=60), []

    def record(setup: Any, split: Any, count: int, step: int, *length: Any) -> Any:
        if split == "train":
            steps.append(step)
        return draw(setup, split, count, step, *length)

    monkeypatch.setattr(loop, "draw", record)
    trainer.run()
    assert steps == [60, 61, 62]


@pytest.mark.parametrize("count", [1, 3, 5, 6, 7])
def test_resumed_training_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    whole = _train(6)
    expected = tiny.found(whole, whole.run())
    interrupted = _train(6, path=tmp_path / "one")
    interrupted.setup.keys.__dict__["checkpoint_s"] = 1e-9
    with pytest.raises(tiny.Stopped):
        interrupted.run(tiny.stop_after(count))
    resumed = _train(6, path=tmp_path / "one")
    assert resumed.progress.step > 0
    assert tiny.found(resumed, resumed.run()) == expected


def test_checkpoints_of_other_conversions_are_not_continued(tmp_path: Path) -> None:
    trainer = _train(2, path=tmp_path / "one")
    trainer.run()
    assert _train(2, path=tmp_path / "one").progress.step == 2
    for changed in ({"uptrained": "full, first"}, {"first_step": 8}, {"uptrained": ""}):
        other = Trainer(tiny.train().learner, replace(trainer.setup, **changed), tmp_path / "one")
        assert other.progress.step == 0
