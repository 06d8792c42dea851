"""Learners: a problem's model with a mechanism, all with the same number of parameters, and its results on a batch."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...contract.decode_state import state_bytes
from ...errors import UnsupportedError
from ...layers.auxiliary_losses import train_selections
from ...layers.named import find_baseline
from ...models.config import Config
from ...models.counting import count_parameters
from ...models.objectives import IGNORED, predict_masked
from ...models.seq2seq import Seq2Seq
from ...models.stacks import Decoder, EncoderDecoder
from ...models.vision import MaskedPatches, VisionTransformer
from ...spec import SpecLike, parse
from .classifiers import PairClassifier, SequenceClassifier
from .problem import Batch, LearnKeys, Problem

PARAMETER_TOLERANCE = 0.10  # relative difference of the number of parameters
SEED_STRIDE = 1000  # of models' seeds, because layer n has the model's seed plus n
REFERENCE_VARIANTS = {"transformer": "full", "recurrent": "additive"}  # to whose number of parameters models are fitted


@dataclass(frozen=True)
class Learner:
    """A model. size: its fitted width. parts: its parameters by part. reference: their number in the reference."""

    model: nn.Module
    size: int
    parts: dict[str, int]
    reference: int

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(self.parts.values())

    @torch.no_grad()
    def count_state(self, length: int) -> int | None:
        """Bytes of a decoder's state for so many tokens of one row; None for other models, and without decoding."""
        if not isinstance(self.model, Decoder) or not all(b.attention.attn.traits.decode for b in self.model.layers):
            return None
        tokens = torch.zeros(1, length, dtype=torch.int64, device=self.model.head.weight.device)
        return state_bytes(self.model.step(tokens, self.model.init_state(1, length))[1])

    def predict(self, batch: Batch, device: str) -> tuple[Tensor, Tensor]:
        """Logits ``[T, classes]`` of the T labels in the batch's targets, in order, and the targets; of patches, all
        values ``[B, patches, W]``."""
        arrays = batch.targets, batch.inputs, batch.hidden, batch.begun, batch.lengths  # in the order of arguments
        targets, *arguments = (torch.from_numpy(x.copy()).to(device) for x in arrays if x is not None)
        if targets.is_floating_point():
            return self.model(*arguments), targets
        is_target = targets != IGNORED
        if is_target.all():  # without a copy
            return self.model(*arguments).flatten(0, -2), targets
        if isinstance(self.model, Decoder | EncoderDecoder):
            return self.model(*arguments, at=is_target), targets
        return self.model(*arguments)[is_target], targets


def compute_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the targets in nats, or the mean squared error of values; of a prediction."""
    if targets.is_floating_point():
        return (logits - targets)[~targets.isnan()].square().mean()
    return predict_masked(logits, targets[targets != IGNORED])


@dataclass(frozen=True)
class EvaluationCounts:
    """Sums over some examples. total_loss: nats over targets, or squared errors of values. correct_examples: rows whose
    targets are all correct. target_squares: of values. example_sum, example_squares: of each example's own score or
    loss, and of its square."""

    targets: int = 0
    correct: int = 0
    total_loss: float = 0.0
    examples: int = 0
    correct_examples: int = 0
    target_squares: float = 0.0
    example_sum: float = 0.0
    example_squares: float = 0.0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def loss(self) -> float:
        """The mean loss of a target."""
        return self.total_loss / max(1, self.targets)

    def score(self, metric: str) -> float:
        """The score by a problem's metric."""
        if metric == "bits":
            return self.loss / math.log(2)
        if metric == "explained":
            return 1 - self.total_loss / self.target_squares if self.target_squares else 0.0
        if metric == "exact":
            return self.correct_examples / max(1, self.examples)
        return self.correct / max(1, self.targets)

    @property
    def standard_error(self) -> float:
        """Of the score, over examples, whose targets are not independent of each other."""
        if self.examples < 2:
            return math.inf
        mean = self.example_sum / self.examples
        variance = max(0.0, self.example_squares / self.examples - mean**2) * self.examples / (self.examples - 1)
        return math.sqrt(variance / self.examples)


NO_COUNTS = EvaluationCounts()


def count_correct(logits: Tensor, targets: Tensor, metric: str) -> tuple[EvaluationCounts, Tensor]:
    """The counts of a prediction, and in the shape of the targets, which of them are correct."""
    if targets.is_floating_point():
        has_value = ~targets.isnan()
        errors, squares = (
            (x.where(has_value, 0.0).double() ** 2).flatten(1).sum(1) for x in (logits - targets, targets)
        )
        total_loss, target_squares = float(errors.sum()), float(squares.sum())
        by_example = errors / (target_squares / len(targets)) if target_squares else errors
        counts = EvaluationCounts(int(has_value.sum()), 0, total_loss, len(targets), 0, target_squares)
        return counts + _sum_examples(by_example), torch.zeros_like(has_value)
    is_target = targets != IGNORED
    labels, is_correct = targets[is_target], torch.zeros_like(is_target)
    is_correct[is_target] = logits.argmax(-1) == labels
    losses = logits.new_zeros(targets.shape)
    losses[is_target] = F.cross_entropy(logits, labels, reduction="none")
    per_row = (x.view(len(targets), -1) for x in (is_target, is_correct, losses))
    row_targets, row_correct, row_losses = (x.sum(1, dtype=torch.float64) for x in per_row)
    all_correct, counted = row_correct == row_targets, row_targets.clamp(min=1)
    by_metric = {"bits": row_losses / counted / math.log(2), "exact": all_correct.double()}
    n_targets, n_correct = int(row_targets.sum()), int(row_correct.sum())
    counts = EvaluationCounts(n_targets, n_correct, float(losses.sum()), len(targets), int(all_correct.sum()))
    return counts + _sum_examples(by_metric.get(metric, row_correct / counted)), is_correct


def _sum_examples(scores: Tensor) -> EvaluationCounts:
    return EvaluationCounts(example_sum=float(scores.sum()), example_squares=float(scores.square().sum()))


def make_learner(problem: Problem, keys: LearnKeys, variant: SpecLike, *, length: int, seed: int) -> Learner:
    """The problem's model with a mechanism, or a baseline's, with as many parameters as the reference. Where models are
    converted, all have the widths of the reference instead, as those made of it do. Raises `UnsupportedError` if
    parameters differ by more than a tenth, or the model cannot use the mechanism."""

    def build(spec: SpecLike, size: int, seed: int) -> nn.Module:
        model = _build_model(problem, keys, spec, size, length, seed)
        train_selections(model)
        return model

    def count(spec: SpecLike, size: int) -> int:
        return sum(count_parameters(build(spec, size, 0)).values())

    size = problem.recipe.d_model * (1 if keys.architecture == "recurrent" else 4)
    target = count(REFERENCE_VARIANTS[keys.architecture], size)
    is_fitted = keys.uptrained_from is None
    if (
        is_fitted and count(variant, size) != target
    ):  # the width up to 4 times as large whose count, which increases, is nearest
        above = 1 + bisect_left(range(1, 4 * size), target, key=partial(count, variant))
        size = min((s for s in (above - 1, above) if s > 0), key=lambda s: abs(count(variant, s) - target))
    model = build(variant, size, seed * SEED_STRIDE)
    learner = Learner(model, size, count_parameters(model), target)
    if is_fitted and abs(learner.parameters - target) > PARAMETER_TOLERANCE * target:
        counts = f"{learner.parameters:,} parameters here, the others {target:,}"
        raise UnsupportedError(f"{variant} has {counts}; no width makes them equal")
    return learner


def _build_model(problem: Problem, keys: LearnKeys, variant: SpecLike, size: int, length: int, seed: int) -> nn.Module:
    recipe, inputs, outputs = problem.recipe, problem.inputs(keys), problem.outputs(keys)
    if keys.architecture == "recurrent":
        return _build_recurrent(variant, size, inputs, outputs, seed)
    if find_baseline(variant):
        raise UnsupportedError(f"{variant} is not attention; use it with architecture = recurrent")
    config = Config(
        d_model=recipe.d_model,
        heads=keys.heads or recipe.heads,
        layers=keys.layers or recipe.layers,
        attention=str(variant) if recipe.model != "sequence" else "full",
        hidden=size,
        positions=cast(Any, recipe.positions),
        convolution=recipe.convolution,
        max_len=length,
        seed=seed,
    )
    if recipe.model == "decoder":
        return Decoder(config, vocab=inputs)
    if recipe.model in ("encoder", "pair"):
        classifier = SequenceClassifier if recipe.model == "encoder" else PairClassifier
        return classifier(config, vocab=inputs, classes=outputs)
    if recipe.model == "sequence":
        return EncoderDecoder(config, source_vocab=inputs, target_vocab=outputs, cross=str(variant))
    assert problem.image is not None
    if recipe.model == "patches":
        return MaskedPatches(config, image=problem.image, patch=recipe.patch)
    return VisionTransformer(config, image=problem.image, patch=recipe.patch, classes=outputs)


def _build_recurrent(variant: SpecLike, width: int, inputs: int, outputs: int, seed: int) -> nn.Module:
    """Recurrent sequence to sequence: with a single context vector for the variant ``gru``, else with attention."""
    sizes: dict[str, Any] = {"source_vocab": inputs, "target_vocab": outputs, "width": width, "seed": seed}
    if variant == "gru":
        return Seq2Seq(**sizes)
    attention = "bahdanau" if parse(variant).names[0] == "additive" else "luong"
    return Seq2Seq(**sizes, attention=attention, variant=str(variant))
