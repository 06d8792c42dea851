"""Reversal and sorting: targets, invalid sizes, baselines of constant answers, and the shortcut of sorting against an
enumeration of all small sources."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.rewriting import REVERSAL, SORTING, RewritingKeys
from efficient_attn.tasks.training.problem import Problem

KEYS = RewritingKeys(vocab=8)
SORTED = "the position and the previous token"


def test_targets_are_the_reversed_source_and_an_end_token() -> None:
    batch = REVERSAL.draw(KEYS, 9, 40, np.random.default_rng(0), "train")
    solved = [[*row[::-1], 9] for row in batch.inputs.tolist()]
    assert batch.targets.tolist() == solved
    assert batch.begun is not None
    assert batch.begun.tolist() == [[8, *row[:-1]] for row in solved]
    assert max(map(max, solved)) < REVERSAL.outputs(KEYS)


def test_targets_are_the_sorted_source_and_an_end_token() -> None:
    batch = SORTING.draw(KEYS, 9, 40, np.random.default_rng(0), "train")
    solved = [[*sorted(row), 9] for row in batch.inputs.tolist()]
    assert batch.targets.tolist() == solved
    assert batch.begun is not None
    assert batch.begun.tolist() == [[8, *row[:-1]] for row in solved]


@pytest.mark.parametrize("length", [2, 20])
def test_baselines_match_the_scores_of_constant_answers(length: int) -> None:
    targets = REVERSAL.draw(KEYS, length, 5000, np.random.default_rng(0), "test").targets
    baselines = REVERSAL.baselines(KEYS, length)
    assert np.bincount(targets.ravel()).max() / targets.size == pytest.approx(baselines.majority, abs=0.01)
    share = (targets == [0] * length + [9]).mean()
    assert share == pytest.approx(baselines.shortcuts["the position alone"], abs=0.01)


@pytest.mark.parametrize("length", [1, 6])
def test_shortcut_of_reversal_guesses_the_most_frequent_token_that_is_left(length: int) -> None:
    """Of two tokens, counted over all sources."""
    sources, hits = list(product(range(2), repeat=length)), 0
    for source in sources:
        for last in range(length, 0, -1):
            hits += source[last - 1] == (sum(source[:last]) * 2 > last)
    share = (hits / len(sources) + 1) / (length + 1)
    shortcuts = REVERSAL.baselines(RewritingKeys(vocab=2), length).shortcuts
    assert shortcuts["the most frequent token not yet written"] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("vocab", "length"), [(2, 1), (2, 5), (5, 1), (4, 2), (3, 5), (6, 4), (9, 3)])
def test_shortcut_is_the_best_guess_by_position_and_last_token(vocab: int, length: int) -> None:
    seen: Counter[tuple[int, int, int]] = Counter()
    for source in product(range(vocab), repeat=length):
        answer = [-1, *sorted(source), vocab]
        seen.update((i, *pair) for i, pair in enumerate(pairwise(answer)))
    best: Counter[tuple[int, int]] = Counter()
    for (i, last, _), count in seen.items():
        best[i, last] = max(best[i, last], count)
    share = sum(best.values()) / ((length + 1) * vocab**length)
    assert SORTING.baselines(RewritingKeys(vocab=vocab), length).shortcuts == {SORTED: pytest.approx(share, abs=1e-9)}


def test_shortcut_stays_below_one_at_large_lengths() -> None:
    shares = [SORTING.baselines(RewritingKeys(), length).shortcuts[SORTED] for length in (32, 256, 1024)]
    assert 0 < shares[0] < shares[1] < shares[2] < 1


@pytest.mark.parametrize("problem", [REVERSAL, SORTING], ids=lambda problem: problem.name)
@pytest.mark.parametrize(("vocab", "length"), [(8, 0), (1, 8)])
def test_sizes_that_do_not_fit_are_refused(problem: Problem, vocab: int, length: int) -> None:
    with pytest.raises(UsageError, match=problem.name):
        problem.check(RewritingKeys(vocab=vocab), length)
