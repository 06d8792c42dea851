"""Alignments: attention weights of a recorded call, recovered with unit values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from efficient_attn.tasks.problems.rewriting import REVERSAL, RewritingKeys
from efficient_attn.tasks.training import alignment
from efficient_attn.tasks.training.alignment import compute_alignment
from efficient_attn.tasks.training.learners import Learner, make_learner
from efficient_attn.tasks.training.problem import Batch

PROBLEM = replace(REVERSAL, recipe=replace(REVERSAL.recipe, d_model=8, heads=2, layers=2))


def _make(variant: str, architecture: str) -> tuple[Learner, Batch]:
    keys = RewritingKeys(vocab=8, architecture=architecture)  # type: ignore[arg-type]
    batch = PROBLEM.draw(keys, 10, 3, np.random.default_rng(0), "test")
    return make_learner(PROBLEM, keys, variant, length=11, seed=0), batch


@pytest.mark.parametrize(
    ("variant", "architecture"), [("full", "transformer"), ("additive", "recurrent"), ("general", "recurrent")]
)
def test_weights_of_each_output_token_sum_to_one(variant: str, architecture: str) -> None:
    rows = compute_alignment(*_make(variant, architecture), "cpu")
    weights = np.array(rows)
    assert weights.shape == (11, 10)  # outputs with an end token, by more source tokens than the 4 features of a value
    assert weights.min() >= 0
    assert weights.sum(1) == pytest.approx(1, abs=0.006)
    assert np.ptp(weights, axis=1).max() > 0.001  # weights differ between tokens


@pytest.mark.parametrize(("variant", "architecture"), [("full", "transformer"), ("additive", "recurrent")])
def test_weights_of_padding_are_zero(variant: str, architecture: str) -> None:
    learner, batch = _make(variant, architecture)
    weights = np.array(compute_alignment(learner, replace(batch, lengths=np.array([7, 10, 10])), "cpu"))
    assert (weights[:, 7:] == 0).all()
    assert weights.sum(1) == pytest.approx(1, abs=0.006)


def test_weights_match_the_softmax_of_the_scores() -> None:
    learner, batch = _make("general", "recurrent")
    model = learner.model
    calls = []
    handle = model.attn.register_forward_pre_hook(lambda _, args: calls.append(args))  # type: ignore[union-attr]
    with torch.no_grad():
        learner.predict(Batch(batch.inputs[:1], batch.targets[:1], batch.begun[:1]), "cpu")  # type: ignore[index]
    handle.remove()
    q, k, _, _ = calls[3]
    weights = next(iter(model.attn.parameters()))[0].detach()  # type: ignore[union-attr]
    expected = (q[0, 0] @ weights @ k[0, 0].T).softmax(-1)[0]
    row = torch.tensor(compute_alignment(learner, batch, "cpu")[3])  # type: ignore[index]
    assert float((row - expected).abs().max()) < 0.0006  # three digits are kept


def test_alignment_is_none_without_attention_or_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute_alignment(*_make("gru", "recurrent"), "cpu") is None
    monkeypatch.setattr(alignment, "MAX_TOKENS", 9)
    assert compute_alignment(*_make("full", "transformer"), "cpu") is None
