"""Reversal: targets, baselines of constant answers, and invalid sizes."""

from __future__ import annotations

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.reversal import REVERSAL, ReversalKeys

KEYS = ReversalKeys(vocab=8)


def test_targets_are_the_reversed_source_and_an_end_token() -> None:
    batch = REVERSAL.draw(KEYS, 9, 40, np.random.default_rng(0), "train")
    solved = [[*row[::-1], 9] for row in batch.inputs.tolist()]
    assert batch.targets.tolist() == solved
    assert batch.begun is not None
    assert batch.begun.tolist() == [[8, *row[:-1]] for row in solved]
    assert max(map(max, solved)) < REVERSAL.outputs(KEYS)


@pytest.mark.parametrize("length", [2, 20])
def test_baselines_match_the_scores_of_constant_answers(length: int) -> None:
    targets = REVERSAL.draw(KEYS, length, 5000, np.random.default_rng(0), "test").targets
    baselines = REVERSAL.baselines(KEYS, length)
    assert np.bincount(targets.ravel()).max() / targets.size == pytest.approx(baselines.majority, abs=0.01)
    assert (targets == [0] * length + [9]).mean() == pytest.approx(baselines.shortcut, abs=0.01)


@pytest.mark.parametrize(("vocab", "length"), [(8, 0), (1, 8)])
def test_sizes_that_do_not_fit_are_refused(vocab: int, length: int) -> None:
    with pytest.raises(UsageError, match="reversal"):
        REVERSAL.check(ReversalKeys(vocab=vocab), length)
