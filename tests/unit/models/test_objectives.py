"""Objectives: compared with loops over targets in float64, and invalid targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from efficient_attn.errors import UsageError
from efficient_attn.models.objectives import (
    IGNORED,
    classify,
    follows,
    predict_masked,
    predict_next,
    predict_patches,
    translate,
)

B, N, V = 3, 5, 7


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def cross_entropy(rows: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """The mean cross-entropy of labels in a loop over rows, without ignored labels."""
    losses = []
    for row, label in zip(rows, labels, strict=True):
        if label != IGNORED:
            losses.append(math.log(sum(math.exp(x) for x in row)) - row[label])
    return sum(losses) / len(losses)


def test_classify_is_the_mean_cross_entropy() -> None:
    logits, labels = draw(B, V), torch.tensor([0, 6, 3])
    assert classify(logits, labels).item() == pytest.approx(cross_entropy(logits.tolist(), [0, 6, 3]), rel=1e-12)


def test_predict_next_compares_with_the_next_token() -> None:
    logits, tokens = draw(B, N, V), torch.randint(V, (B, N))
    rows, labels = [], []
    for b in range(B):
        for t in range(N - 1):
            rows.append(logits[b, t].tolist())
            labels.append(int(tokens[b, t + 1]))
    assert predict_next(logits, tokens).item() == pytest.approx(cross_entropy(rows, labels), rel=1e-12)


@pytest.mark.parametrize("objective", [predict_masked, translate])
def test_ignored_targets_have_no_loss_and_no_gradient(objective: Callable[..., Tensor]) -> None:
    logits, targets = draw(B, N, V).requires_grad_(), torch.randint(V, (B, N))
    targets[0], targets[1, ::2] = IGNORED, IGNORED
    loss = objective(logits, targets)
    expected = cross_entropy(logits.detach().flatten(0, 1).tolist(), targets.flatten().tolist())
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[targets == IGNORED].count_nonzero() == 0
    assert gradient[targets != IGNORED].count_nonzero() > 0


def test_predict_next_ignores_padding() -> None:
    logits, tokens = draw(1, N, V), torch.tensor([[1, 2, 3, IGNORED, IGNORED]])
    expected = cross_entropy(logits[0, :2].tolist(), [2, 3])
    assert predict_next(logits, tokens).item() == pytest.approx(expected, rel=1e-12)


def test_follows_is_the_mean_cross_entropy() -> None:
    logits, labels = draw(B, 2), torch.tensor([1, 0, 1])
    assert follows(logits, labels).item() == pytest.approx(cross_entropy(logits.tolist(), [1, 0, 1]), rel=1e-12)


def test_predict_patches_is_the_error_of_normalised_masked_patches() -> None:
    predicted, patches, hidden = draw(B, N, 6), 3 + 2 * draw(B, N, 6), torch.rand(B, N) < 0.5
    hidden[0], hidden[1, 0] = False, True
    errors = []
    for b in range(B):
        for p in range(N):
            if hidden[b, p]:
                numbers = patches[b, p].tolist()
                mean = sum(numbers) / 6
                deviation = math.sqrt(sum((x - mean) ** 2 for x in numbers) / 5 + 1e-6)
                guessed = predicted[b, p].tolist()
                errors.append(sum((g - (x - mean) / deviation) ** 2 for g, x in zip(guessed, numbers, strict=True)) / 6)
    assert predict_patches(predicted, patches, hidden).item() == pytest.approx(sum(errors) / len(errors), rel=1e-12)


ONES = torch.ones
WRONG: dict[str, tuple[Callable[..., Tensor], tuple[Any, ...], str]] = {
    "label too high": (classify, (draw(2, 4), torch.tensor([0, 4])), "classify: label 4 is outside of 4 classes"),
    "label below 0": (classify, (draw(2, 4), torch.tensor([-1, 3])), "classify: label -1 is outside of 4 classes"),
    "token too high": (predict_next, (draw(1, 2, 4), torch.tensor([[0, 9]])), "predict_next: label 9 is outside of 4"),
    "word too high": (predict_masked, (draw(1, 1, 4), torch.tensor([[5]])), "predict_masked: label 5 is outside of 4"),
    "more labels": (classify, (draw(2, 4), torch.tensor([0, 1, 2])), r"logits \[2, 4\] and targets \[3\] do not fit"),
    "no rows": (classify, (draw(4), torch.tensor(1)), r"logits \[4\] and targets \[\] do not fit"),
    "longer tokens": (
        *(predict_next, (draw(1, 2, 4), torch.zeros(1, 3, dtype=torch.long))),
        r"predict_next: logits \[1, 2, 4\] and targets \[1, 3\] do not fit",
    ),
    "shares as labels": (classify, (draw(2, 4), ONES(2)), "targets must be whole numbers, got torch.float32"),
    "three sentences": (follows, (draw(2, 3), torch.tensor([0, 1])), r"follows: logits must be \[B, 2\], got \[2, 3\]"),
    "nothing asked": (predict_masked, (draw(1, 2, 4), torch.full((1, 2), IGNORED)), "so there is no target"),
    "one token": (predict_next, (draw(1, 1, 4), torch.zeros(1, 1, dtype=torch.long)), "so there is no target"),
    "other patches": (predict_patches, (draw(1, 2, 3), draw(1, 2, 4), ONES(1, 2) > 0), "do not fit"),
    "other hidden": (predict_patches, (draw(1, 2, 3), draw(1, 2, 3), ONES(1, 3) > 0), "do not fit"),
    "nothing hidden": (predict_patches, (draw(1, 2, 3), draw(1, 2, 3), ONES(1, 2) < 0), "no patch is masked"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_targets_are_reported(name: str) -> None:
    objective, arguments, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        objective(*arguments)
