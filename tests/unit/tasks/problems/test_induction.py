"""Induction: targets, distances, the majority baseline and invalid sizes."""

from __future__ import annotations

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.induction import INDUCTION, InductionKeys
from efficient_attn.tasks.training.problem import IGNORED

KEYS = InductionKeys(nearest=1)


@pytest.mark.parametrize("length", [3, 4, 33])
def test_target_is_the_token_after_the_special_token(length: int) -> None:
    INDUCTION.check(KEYS, length)
    batch = INDUCTION.draw(KEYS, length, 300, np.random.default_rng(0), "train")
    rows, positions = np.nonzero(batch.inputs == KEYS.vocab)
    assert (rows == np.repeat(np.arange(300), 2)).all()  # twice in each row
    assert (positions[1::2] == length - 1).all()
    assert (batch.targets[:, :-1] == IGNORED).all()
    answer = positions[::2] + 1
    assert (batch.inputs[np.arange(300), answer] == batch.targets[:, -1]).all()
    assert batch.distance is not None
    assert (batch.distance[:, :-1] == -1).all()
    assert (batch.distance[:, -1] == length - 1 - positions[::2]).all()  # back to the special token
    assert set(positions[::2]) == set(range(length - 2))  # at any position


def test_answers_are_at_least_half_the_length_back_by_default() -> None:
    for keys, nearest in ((InductionKeys(), 32), (InductionKeys(nearest=50), 50)):
        distance = INDUCTION.draw(keys, 64, 2000, np.random.default_rng(0), "train").distance
        assert distance is not None
        assert set(distance[:, -1] - 1) == set(range(nearest, 63))


def test_distances_beyond_the_beginning_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 62"):
        INDUCTION.check(InductionKeys(nearest=63), 64)


def test_majority_is_the_share_of_the_most_frequent_token() -> None:
    targets = INDUCTION.draw(KEYS, 16, 20000, np.random.default_rng(0), "test").targets[:, -1]
    assert np.bincount(targets).max() / 20000 == pytest.approx(INDUCTION.baselines(KEYS, 16).majority, abs=0.005)


@pytest.mark.parametrize("keys", [KEYS, InductionKeys(), InductionKeys(nearest=14)])
def test_shortcut_is_the_most_frequent_token_where_answers_are(keys: InductionKeys) -> None:
    batch, hits = INDUCTION.draw(keys, 16, 2000, np.random.default_rng(0), "test"), 0
    for tokens, target in zip(batch.inputs.tolist(), batch.targets[:, -1].tolist(), strict=True):
        candidates = tokens[1 : 16 - (keys.nearest or 8)]
        hits += target == min(candidates, key=lambda guess: (-candidates.count(guess), guess))
    shortcuts = INDUCTION.baselines(keys, 16).shortcuts
    assert shortcuts == {"the most frequent token where answers are": hits / 2000}
    assert shortcuts == ({"the most frequent token where answers are": 1.0} if keys.nearest == 14 else shortcuts)


@pytest.mark.parametrize(("vocab", "length"), [(16, 2), (1, 16)])
def test_sizes_that_do_not_fit_are_refused(vocab: int, length: int) -> None:
    with pytest.raises(UsageError, match="induction"):
        INDUCTION.check(InductionKeys(vocab=vocab), length)
