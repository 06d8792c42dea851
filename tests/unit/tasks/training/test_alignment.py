"""Alignments: the weights of a call that was made, from what it makes of unit values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from efficient_attn.tasks.problems.reversal import REVERSAL, ReversalKeys
from efficient_attn.tasks.training import alignment
from efficient_attn.tasks.training.alignment import compute_alignment
from efficient_attn.tasks.training.learners import Learner, make_learner
from efficient_attn.tasks.training.problem import Batch

PROBLEM = replace(REVERSAL, recipe=replace(REVERSAL.recipe, d_model=8, heads=2, layers=2))


def _make(variant: str, architecture: str) -> tuple[Learner, Batch]:
    keys = ReversalKeys(vocab=8, architecture=architecture)  # type: ignore[arg-type]
    batch = PROBLEM.draw(keys, 10, 3, np.random.default_rng(0), "test")
    return make_learner(PROBLEM, keys, variant, length=11, seed=0), batch


@pytest.mark.parametrize(
    ("variant", "architecture"), [("full", "transformer"), ("additive", "recurrent"), ("general", "recurrent")]
)
def test_each_written_token_shares_one_among_those_of_the_source(variant: str, architecture: str) -> None:
    found = compute_alignment(*_make(variant, architecture), "cpu")
    weights = np.array(found)
    assert weights.shape == (11, 10)  # the answer and its end, by a source longer than values of four are wide
    assert weights.min() >= 0
    assert weights.sum(1) == pytest.approx(1, abs=0.006)
    assert np.ptp(weights, axis=1).max() > 0.001  # they tell tokens apart


def test_it_is_what_softmax_makes_of_the_call() -> None:
    learner, batch = _make("general", "recurrent")
    model = learner.model
    calls = []
    handle = model.attn.register_forward_pre_hook(lambda _, args: calls.append(args))  # type: ignore[union-attr]
    with torch.no_grad():
        learner.predict(Batch(batch.inputs[:1], batch.targets[:1], batch.begun[:1]), "cpu")  # type: ignore[index]
    handle.remove()
    q, k, _, _ = calls[3]
    weights = next(iter(model.attn.parameters()))[0].detach()  # type: ignore[union-attr]
    wanted = (q[0, 0] @ weights @ k[0, 0].T).softmax(-1)[0]
    line = torch.tensor(compute_alignment(learner, batch, "cpu")[3])  # type: ignore[index]
    assert float((line - wanted).abs().max()) < 0.0006  # three digits are kept


def test_where_there_is_nothing_to_draw_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute_alignment(*_make("gru", "recurrent"), "cpu") is None
    monkeypatch.setattr(alignment, "MAX_TOKENS", 9)
    assert compute_alignment(*_make("full", "transformer"), "cpu") is None
