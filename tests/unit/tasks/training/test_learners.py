"""Learners: models of one size whatever the mechanism, and what they make of a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_training as tiny
import torch

from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.registry import info, names
from efficient_attn.tasks.problems.digits import DIGITS, DigitsKeys
from efficient_attn.tasks.problems.listops import LISTOPS
from efficient_attn.tasks.problems.reversal import REVERSAL, ReversalKeys
from efficient_attn.tasks.training.learners import (
    PARAMETER_TOLERANCE,
    EvaluationCounts,
    Learner,
    compute_loss,
    count_correct,
    make_learner,
)
from efficient_attn.tasks.training.problem import IGNORED, Batch, Problem

SMALL = {"d_model": 16, "heads": 2, "layers": 1}
REVERSED = replace(REVERSAL, recipe=replace(REVERSAL.recipe, **SMALL))
REVERSING = ReversalKeys(vocab=8)


def _make(variant: str, problem: Problem = tiny.TINY, given: Any = None, *, seed: int = 0) -> Learner:
    return make_learner(problem, given or tiny.keys(), variant, length=tiny.LENGTH + 1, seed=seed)


def _count(learner: Learner) -> int:
    return sum(p.numel() for p in learner.model.parameters())


# -- models of one size ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", names())
def test_every_mechanism_has_as_many_parameters_as_the_reference_or_says_why_not(variant: str) -> None:
    if not info(variant).traits.causal:
        with pytest.raises(UnsupportedError, match=f"Decoder needs .* takes causal masks; {variant}: no causal masks"):
            _make(variant)
        return
    learner, wanted = _make(variant), _count(_make("full"))
    assert learner.reference == wanted
    assert learner.parameters == sum(learner.parts.values()) == _count(learner)
    assert abs(learner.parameters - wanted) <= PARAMETER_TOLERANCE * wanted
    assert set(learner.parts) == {"attention", "mixer", "embeddings"}
    hidden = {part.feed_forward.inner.out_features for part in learner.model.layers}  # type: ignore[union-attr]
    assert hidden == {learner.size}


def test_the_size_is_what_makes_it_so() -> None:
    full, fewer = _make("full"), _make("mqa")
    assert full.size == 64
    assert fewer.size > full.size  # what attention has less, the feed-forward part has more
    assert fewer.parts["attention"] < full.parts["attention"]
    bare = _count(fewer) - (fewer.size - full.size) * (2 * 16 + 1)  # as it would be with the reference's size
    assert abs(_count(fewer) - _count(full)) < abs(bare - _count(full))


def test_what_no_width_brings_together_is_unsupported() -> None:
    huge = "additive:hidden=4000"
    with pytest.raises(UnsupportedError, match=f"{huge} has [0-9,]+ parameters here, the others [0-9,]+; no width"):
        _make(huge)


def test_a_seed_draws_the_weights_of_every_layer_anew() -> None:
    given = tiny.keys(layers=2)
    one, same, other = (_make("performer", given=given, seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    drawn = [name for name in one if name.endswith("weight") and "norm" not in name]
    assert len(drawn) > 10
    assert not any(torch.equal(one[name], other[name]) for name in drawn)
    layers = [name for name in drawn if name.startswith("blocks.0.")]
    assert not any(torch.equal(one[name], one[name.replace("blocks.0.", "blocks.1.")]) for name in layers)


# -- every kind of model ---------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Problem, Any, str]] = {
    "decoder": (tiny.TINY, tiny.keys(), "linear"),
    "encoder": (replace(LISTOPS, recipe=replace(LISTOPS.recipe, **SMALL)), LISTOPS.keys(), "nystromformer"),
    "sequence": (REVERSED, REVERSING, "linear"),
    "one vector": (REVERSED, ReversalKeys(vocab=8, architecture="recurrent"), "gru"),
    "recurrent": (REVERSED, ReversalKeys(vocab=8, architecture="recurrent"), "general"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_answers_what_is_asked(kind: str) -> None:
    problem, given, variant = KINDS[kind]
    learner = _make(variant, problem, given)
    assert abs(learner.parameters - learner.reference) <= PARAMETER_TOLERANCE * learner.reference
    batch = problem.draw(given, tiny.LENGTH, 3, np.random.default_rng(0), "train")
    logits, targets = learner.predict(batch, "cpu")
    assert logits.shape == (*targets.shape, problem.outputs(given))
    assert (targets.numpy() == batch.targets).all()
    compute_loss(logits, targets).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learner.model.parameters())


def test_images_are_read_in_patches() -> None:
    problem = replace(DIGITS, recipe=replace(DIGITS.recipe, **SMALL))
    learner = make_learner(problem, DigitsKeys(), "nystromformer", length=17, seed=0)
    batch = Batch(np.ones((3, 1, 8, 8), np.float32), np.array([1, 2, 3]))
    assert learner.predict(batch, "cpu")[0].shape == (3, 10)


def test_padding_does_not_reach_the_label() -> None:
    problem, given, _ = KINDS["encoder"]
    learner = _make("full", problem, given)
    batch = problem.draw(given, tiny.LENGTH, 4, np.random.default_rng(0), "train")
    lengths = np.array([3, 7, 16, 16])
    other = batch.inputs.copy()
    other[0, 3:], other[1, 7:] = 1, 2
    here, there = (learner.predict(replace(batch, inputs=x, lengths=lengths), "cpu")[0] for x in (batch.inputs, other))
    assert torch.allclose(here, there, atol=1e-6)


@pytest.mark.parametrize(
    ("variant", "problem", "given", "says"),
    [
        ("gru", tiny.TINY, tiny.keys(), "gru is not attention; use it with architecture = recurrent"),
        ("retention", KINDS["encoder"][0], KINDS["encoder"][1], "Encoder needs a mechanism that .*; retention: "),
        ("reformer", REVERSED, REVERSING, "Decoder needs a mechanism that .*; reformer: "),
    ],
)
def test_what_a_model_cannot_use_is_unsupported(variant: str, problem: Problem, given: Any, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        _make(variant, problem, given)


def test_a_recurrent_decoder_is_refused() -> None:
    with pytest.raises(UsageError, match="mqar: architecture recurrent is for sequence to sequence only"):
        _make("gru", given=tiny.keys(architecture="recurrent"))


# -- marks -----------------------------------------------------------------------------------------------------------


def test_marks_count_what_is_asked() -> None:
    logits = torch.eye(4)[torch.tensor([[0, 1, 2], [3, 3, 3]])]
    targets = torch.tensor([[0, IGNORED, 2], [3, 0, IGNORED]])
    found, right = count_correct(logits, targets)
    assert (found.targets, found.correct, found.examples, found.correct_examples) == (4, 3, 2, 1)
    assert right.tolist() == [[True, False, True], [True, False, False]]
    nats = 4 * math.log(math.e + 3) - 3
    assert found.total_loss == pytest.approx(nats)
    assert found.loss == pytest.approx(nats / 4)
    assert found.score("accuracy") == 3 / 4
    assert found.score("exact") == 1 / 2
    assert found.score("bits") == pytest.approx(nats / 4 / math.log(2))


def test_marks_of_labels_are_of_whole_rows_and_add_up() -> None:
    found, _ = count_correct(torch.eye(3), torch.tensor([0, 1, 1]))
    assert (found.targets, found.correct, found.examples, found.correct_examples) == (3, 2, 3, 2)
    assert found + EvaluationCounts(1, 1, 0.5, 1, 0) == EvaluationCounts(4, 3, found.total_loss + 0.5, 4, 2)


# -- values ----------------------------------------------------------------------------------------------------------


def test_values_are_scored_by_the_variance_that_is_explained() -> None:
    targets = torch.tensor([[[1.0, -1.0], [math.nan, math.nan]], [[2.0, 0.0], [0.0, 2.0]]])
    predicted = torch.where(targets.isnan(), 9.0, targets / 2)
    marks, right = count_correct(predicted, targets)
    assert compute_loss(predicted, targets).item() == pytest.approx(2.5 / 6)
    assert (marks.targets, marks.examples, marks.loss) == (6, 2, pytest.approx(2.5 / 6))
    assert (marks + marks).score("explained") == pytest.approx(0.75)
    assert not right.any()
