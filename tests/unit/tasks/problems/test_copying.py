"""Copying: targets, baselines and invalid sizes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.copying import COPYING, CopyingKeys
from efficient_attn.tasks.training.problem import IGNORED

KEYS = CopyingKeys()


@pytest.mark.parametrize("length", [2, 4, 32])
def test_targets_repeat_the_first_half(length: int) -> None:
    COPYING.check(KEYS, length)
    batch, half = COPYING.draw(KEYS, length, 30, np.random.default_rng(0), "train"), length // 2
    assert batch.inputs.shape == batch.targets.shape == (30, length)
    assert (batch.targets[:, :half] == IGNORED).all()
    assert (batch.targets[:, half:] == batch.inputs[:, :half]).all()
    assert (batch.inputs[:, half] == KEYS.vocab).all()
    assert (batch.inputs[:, half + 1 :] == batch.targets[:, half:-1]).all()  # each target precedes the same input
    assert batch.distance is not None
    assert (batch.distance == [-1] * half + [half] * half).all()


def test_majority_is_the_share_of_the_most_frequent_token() -> None:
    targets = COPYING.draw(KEYS, 64, 2000, np.random.default_rng(0), "test").targets
    share = np.bincount(targets[targets != IGNORED]).max() / (2000 * 32)
    assert share == pytest.approx(COPYING.baselines(KEYS, 64).majority, abs=0.003)


def test_shortcut_guesses_the_most_frequent_token_that_is_left() -> None:
    batch, correct = COPYING.draw(KEYS, 16, 2000, np.random.default_rng(0), "test"), 0
    for tokens in batch.targets[:, 8:].tolist():
        for i, token in enumerate(tokens):
            left = Counter(tokens) - Counter(tokens[:i])
            correct += token == min(left, key=lambda guess: (-left[guess], guess))
    assert COPYING.baselines(KEYS, 16).shortcuts == {"the most frequent token not yet copied": correct / 16000}


@pytest.mark.parametrize(("vocab", "length"), [(64, 31), (1, 32)])
def test_sizes_that_do_not_fit_are_refused(vocab: int, length: int) -> None:
    with pytest.raises(UsageError, match="copying"):
        COPYING.check(CopyingKeys(vocab=vocab), length)
