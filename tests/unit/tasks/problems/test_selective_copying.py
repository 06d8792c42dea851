"""Selective copying: targets, the distribution of tokens, and invalid sizes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.selective_copying import SELECTIVE_COPYING, SelectiveCopyingKeys
from efficient_attn.tasks.training.problem import IGNORED

KEYS = SelectiveCopyingKeys()


@pytest.mark.parametrize("length", [16, 17, 64])
def test_targets_are_the_nonblank_tokens_in_order(length: int) -> None:
    SELECTIVE_COPYING.check(KEYS, length)
    batch = SELECTIVE_COPYING.draw(KEYS, length, 200, np.random.default_rng(0), "train")
    assert batch.distance is not None
    for tokens, targets, distance in zip(batch.inputs, batch.targets, batch.distance, strict=True):
        sources, queries = np.flatnonzero(tokens < KEYS.vocab), np.arange(length - KEYS.tokens, length)
        assert (tokens[queries] == KEYS.vocab + 1).all()
        assert (targets[: -KEYS.tokens] == IGNORED).all()
        assert tokens[sources].tolist() == targets[queries].tolist()
        assert (queries - distance[queries] == sources).all()
        assert (distance[: -KEYS.tokens] == -1).all()


def test_tokens_and_their_positions_are_uniform() -> None:
    batch = SELECTIVE_COPYING.draw(KEYS, 64, 4000, np.random.default_rng(0), "train")
    shares = (batch.inputs[:, :56] < KEYS.vocab).mean(0)
    assert abs(shares - 8 / 56).max() < 0.03
    targets = batch.targets[:, -8:]
    assert np.bincount(targets.ravel()).max() / targets.size == pytest.approx(1 / 16, abs=0.004)
    assert SELECTIVE_COPYING.baselines(KEYS, 64).majority == 1 / 16


def test_shortcut_is_the_best_guess_by_position() -> None:
    """Counted over all placements of two tokens: the number of a token is guessed from its position alone."""
    keys, places = SelectiveCopyingKeys(tokens=2, vocab=50), range(5)
    best = {0: (0, 1, 2, 3, 4), 1: (4, 3, 2, 1, 0)}  # positions by how probable the number is
    pairs = list(combinations(places, 2))
    hits = sum(min(pair, key=best[number].index) == pair[number] for pair in pairs for number in (0, 1))
    (share,) = SELECTIVE_COPYING.baselines(keys, 7).shortcuts.values()
    assert share == pytest.approx(hits / (2 * len(pairs)), abs=0.02)
    (share,) = SELECTIVE_COPYING.baselines(KEYS, 64).shortcuts.values()
    batch = SELECTIVE_COPYING.draw(KEYS, 64, 2000, np.random.default_rng(1), "test")
    positions = np.nonzero(batch.inputs < KEYS.vocab)[1].reshape(-1, 8)
    places = np.rint(np.arange(8) * 55 / 7)  # evenly over the sequence, which is worse
    nearest = np.abs(positions[:, None] - places[:, None]).argmin(2)
    evenly = np.take_along_axis(batch.targets[:, -8:], nearest, 1) == batch.targets[:, -8:]
    assert 0.5 < evenly.mean() < share < 0.6


@pytest.mark.parametrize(("keys", "length"), [({}, 15), ({"vocab": 1}, 64)])
def test_sizes_that_do_not_fit_are_refused(keys: dict[str, int], length: int) -> None:
    with pytest.raises(UsageError, match="selective_copying"):
        SELECTIVE_COPYING.check(SelectiveCopyingKeys(**keys), length)
