"""Learners: models of equal size for all mechanisms, their predictions, and their scores."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_training as tiny
import torch
import torch.nn.functional as F
from torch import Tensor

from efficient_attn.errors import UnsupportedError
from efficient_attn.registry import info
from efficient_attn.tasks.problems.digits import DIGITS
from efficient_attn.tasks.problems.listops import LISTOPS
from efficient_attn.tasks.problems.matching import MATCHING
from efficient_attn.tasks.problems.rewriting import REVERSAL, RewritingKeys
from efficient_attn.tasks.training.learners import (
    PARAMETER_TOLERANCE,
    EvaluationCounts,
    Learner,
    compute_loss,
    count_correct,
    make_learner,
)
from efficient_attn.tasks.training.problem import IGNORED, Batch, LearnKeys, Problem

SMALL = {"d_model": 16, "heads": 2, "layers": 1}
SMALL_REVERSAL = replace(REVERSAL, recipe=replace(REVERSAL.recipe, **SMALL))
REVERSAL_KEYS = RewritingKeys(vocab=8)


def _make(variant: str, problem: Problem = tiny.TINY, given: Any = None, *, seed: int = 0) -> Learner:
    return make_learner(problem, given or tiny.keys(), variant, length=tiny.LENGTH + 1, seed=seed)


def _count(learner: Learner) -> int:
    return sum(p.numel() for p in learner.model.parameters() if p.requires_grad)


# -- models of equal size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_causal_mechanisms_have_as_many_parameters_as_full(variant: str) -> None:
    if not info(variant).traits.causal:
        with pytest.raises(UnsupportedError, match=f"Decoder needs .* takes causal masks; {variant}: no causal masks"):
            _make(variant)
        return
    learner, expected = _make(variant), _count(_make("full"))
    assert learner.reference == expected
    assert learner.parameters == sum(learner.parts.values()) == _count(learner)
    assert abs(learner.parameters - expected) <= PARAMETER_TOLERANCE * expected
    assert set(learner.parts) == {"attention", "mixer", "embeddings"}
    hidden = {part.feed_forward.inner.out_features for part in learner.model.layers}  # type: ignore[union-attr]
    assert hidden == {learner.size}


def test_feed_forward_size_compensates_for_smaller_attention() -> None:
    full, fewer = _make("full"), _make("mqa")
    assert full.size == 64
    assert fewer.size > full.size  # a larger feed-forward part compensates for smaller attention
    assert fewer.parts["attention"] < full.parts["attention"]
    unadjusted = _count(fewer) - (fewer.size - full.size) * (2 * 16 + 1)  # with the reference's feed-forward size
    assert abs(_count(fewer) - _count(full)) < abs(unadjusted - _count(full))


def test_mechanisms_with_too_many_parameters_are_unsupported() -> None:
    huge = "additive:hidden=4000"
    with pytest.raises(UnsupportedError, match=f"{huge} has [0-9,]+ parameters here, the others [0-9,]+; no width"):
        _make(huge)


def test_seeds_determine_the_weights_of_every_layer() -> None:
    given = tiny.keys(layers=2)
    first, same, other = (_make("performer", given=given, seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], same[name]) for name in first)
    drawn = [name for name in first if name.endswith("weight") and "norm" not in name]
    assert len(drawn) > 10
    assert not any(torch.equal(first[name], other[name]) for name in drawn)
    layers = [name for name in drawn if name.startswith("blocks.0.")]
    assert not any(torch.equal(first[name], first[name.replace("blocks.0.", "blocks.1.")]) for name in layers)


# -- every kind of model ---------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[Problem, Any, str]] = {
    "decoder": (tiny.TINY, tiny.keys(), "linear"),
    "encoder": (replace(LISTOPS, recipe=replace(LISTOPS.recipe, **SMALL)), LISTOPS.keys(), "nystromformer"),
    "pair": (replace(MATCHING, recipe=replace(MATCHING.recipe, **SMALL)), MATCHING.keys(), "nystromformer"),
    "sequence": (SMALL_REVERSAL, REVERSAL_KEYS, "linear"),
    "one vector": (SMALL_REVERSAL, RewritingKeys(vocab=8, architecture="recurrent"), "gru"),
    "recurrent": (SMALL_REVERSAL, RewritingKeys(vocab=8, architecture="recurrent"), "general"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_model_predicts_and_has_gradients(kind: str) -> None:
    problem, given, variant = KINDS[kind]
    learner = _make(variant, problem, given)
    assert abs(learner.parameters - learner.reference) <= PARAMETER_TOLERANCE * learner.reference
    batch = problem.draw(given, tiny.LENGTH, 3, np.random.default_rng(0), "train")
    logits, targets = learner.predict(batch, "cpu")
    assert logits.shape == ((batch.targets != IGNORED).sum(), problem.outputs(given))
    assert (targets.numpy() == batch.targets).all()
    compute_loss(logits, targets).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learner.model.parameters())


@pytest.mark.parametrize("kind", ["decoder", "sequence", "recurrent"])
@pytest.mark.parametrize("ignored", [0.5, 0.0])
def test_predictions_equal_those_of_all_positions(kind: str, ignored: float) -> None:
    problem, given, variant = KINDS[kind]
    learner = _make(variant, problem, given)
    batch = problem.draw(given, tiny.LENGTH, 3, np.random.default_rng(0), "train")
    labels = np.random.default_rng(1).integers(problem.outputs(given), size=batch.targets.shape)
    drawn = np.random.default_rng(2).random(labels.shape) < ignored
    batch = replace(batch, targets=np.where(drawn, IGNORED, labels))
    logits, targets = learner.predict(batch, "cpu")
    arrays = batch.inputs, batch.begun
    all_logits = learner.model(*(torch.from_numpy(x) for x in arrays if x is not None))
    torch.testing.assert_close(logits, all_logits[targets != IGNORED], rtol=0, atol=1e-6)
    loss = F.cross_entropy(all_logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(compute_loss(logits, targets), loss)
    counts, is_correct = count_correct(logits.detach(), targets, "accuracy")
    assert (is_correct == (all_logits.argmax(-1) == targets)).all()
    assert counts.loss == pytest.approx(float(loss.detach()))


def test_the_head_is_computed_for_targets_only() -> None:
    learner, n_rows = _make("linear"), []
    batch = tiny.TINY.draw(tiny.keys(), tiny.LENGTH, 3, np.random.default_rng(0), "train")
    learner.model.head.register_forward_hook(lambda _, __, logits: n_rows.append(logits.numel() // 32))  # type: ignore
    learner.predict(batch, "cpu")
    assert n_rows == [3 * tiny.keys().pairs]


def test_vision_models_predict_classes_of_images() -> None:
    problem = replace(DIGITS, recipe=replace(DIGITS.recipe, **SMALL))
    learner = make_learner(problem, LearnKeys(), "nystromformer", length=17, seed=0)
    batch = Batch(np.ones((3, 1, 8, 8), np.float32), np.array([1, 2, 3]))
    assert learner.predict(batch, "cpu")[0].shape == (3, 10)


@pytest.mark.parametrize("variant", ["full", "linear", "nystromformer:n_landmarks=4", "sliding_window:window=4"])
def test_padding_does_not_affect_predictions(variant: str) -> None:
    problem, given, _ = KINDS["encoder"]
    learner = _make(variant, problem, given)
    batch = problem.draw(given, tiny.LENGTH, 4, np.random.default_rng(0), "train")
    lengths = np.array([3, 7, 16, 16])
    changed = batch.inputs.copy()
    changed[0, 3:], changed[1, 7:] = 1, 2
    logits, changed_logits = (
        learner.predict(replace(batch, inputs=x, lengths=lengths), "cpu")[0] for x in (batch.inputs, changed)
    )
    assert torch.allclose(logits, changed_logits, atol=1e-6)


@pytest.mark.parametrize(
    ("variant", "problem", "given", "message"),
    [
        ("gru", tiny.TINY, tiny.keys(), "gru is not attention; use it with architecture = recurrent"),
        ("retention", KINDS["encoder"][0], KINDS["encoder"][1], "Encoder needs a mechanism that .*; retention: "),
        ("reformer", SMALL_REVERSAL, REVERSAL_KEYS, "Decoder needs a mechanism that .*; reformer: "),
    ],
)
def test_mechanisms_that_a_model_cannot_use_are_unsupported(
    variant: str, problem: Problem, given: Any, message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _make(variant, problem, given)


# -- scores ----------------------------------------------------------------------------------------------------------


def test_counts_exclude_ignored_targets() -> None:
    logits = torch.eye(4)[torch.tensor([0, 2, 3, 3])]  # of the four targets
    targets = torch.tensor([[0, IGNORED, 2], [3, 0, IGNORED]])
    counts, correct = count_correct(logits, targets, "accuracy")
    assert (counts.targets, counts.correct, counts.examples, counts.correct_examples) == (4, 3, 2, 1)
    assert correct.tolist() == [[True, False, True], [True, False, False]]
    nats = 4 * math.log(math.e + 3) - 3
    assert counts.total_loss == pytest.approx(nats)
    assert counts.loss == pytest.approx(nats / 4)
    assert counts.score("accuracy") == 3 / 4
    assert counts.score("exact") == 1 / 2
    assert counts.score("bits") == pytest.approx(nats / 4 / math.log(2))


def test_counts_of_labels_can_be_added() -> None:
    counts, _ = count_correct(torch.eye(3), torch.tensor([0, 1, 1]), "accuracy")
    assert (counts.targets, counts.correct, counts.examples, counts.correct_examples) == (3, 2, 3, 2)
    more = EvaluationCounts(1, 1, 0.5, 1, 0, example_sum=1, example_squares=1)
    both = EvaluationCounts(4, 3, counts.total_loss + 0.5, 4, 2, example_sum=3, example_squares=3)
    assert counts + more == both
    assert both.standard_error == pytest.approx(torch.tensor([1.0, 0, 1, 1]).std().item() / 2)


@pytest.mark.parametrize("metric", ["accuracy", "exact", "bits"])
def test_standard_errors_are_over_examples_not_targets(metric: str) -> None:
    """Targets of an example are not independent: repeating each target does not make the score more certain."""
    generator = torch.Generator().manual_seed(0)
    logits, targets = (torch.randn(40, 3, 5, generator=generator), torch.randint(5, (40, 3), generator=generator))
    targets[:, 2] = IGNORED

    def count(logits: Tensor, targets: Tensor) -> EvaluationCounts:
        return count_correct(logits[targets != IGNORED], targets, metric)[0]

    single = count(logits, targets)
    assert count(logits.repeat(1, 4, 1), targets.repeat(1, 4)).standard_error == pytest.approx(single.standard_error)
    by_example = [count(logits[i : i + 1], targets[i : i + 1]).score(metric) for i in range(40)]
    assert single.standard_error == pytest.approx(torch.tensor(by_example).std().item() / 40**0.5, rel=1e-4)
    assert single.score(metric) == pytest.approx(sum(by_example) / 40)
    assert count(logits[:1], targets[:1]).standard_error == math.inf


# -- values ----------------------------------------------------------------------------------------------------------


def test_values_are_scored_by_explained_variance() -> None:
    targets = torch.tensor([[[1.0, -1.0], [math.nan, math.nan]], [[2.0, 0.0], [0.0, 2.0]]])
    predicted = torch.where(targets.isnan(), 9.0, targets / 2)
    counts, correct = count_correct(predicted, targets, "explained")
    assert compute_loss(predicted, targets).item() == pytest.approx(2.5 / 6)
    assert (counts.targets, counts.examples, counts.loss) == (6, 2, pytest.approx(2.5 / 6))
    assert (counts + counts).score("explained") == pytest.approx(0.75)
    assert not correct.any()


def test_a_mechanism_with_a_loss_of_its_own_is_trained_by_it() -> None:
    """The indexer of dsa, which the model's loss does not train."""
    trainer = tiny.train(variant="dsa:topk=2:index_heads=2:index_dim=4", steps=2)
    before = {name: x.clone() for name, x in trainer.learner.model.named_parameters() if "index_" in name}
    trainer.run(lambda: None)
    after = dict(trainer.learner.model.named_parameters())
    assert before
    assert all(not torch.equal(x, after[name]) for name, x in before.items())
