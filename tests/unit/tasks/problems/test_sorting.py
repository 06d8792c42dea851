"""Sorting: targets, and the shortcut compared with an enumeration of all small sources."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.sorting import SORTING, SortingKeys


def test_targets_are_the_sorted_source_and_an_end_token() -> None:
    keys = SortingKeys(vocab=8)
    batch = SORTING.draw(keys, 9, 40, np.random.default_rng(0), "train")
    solved = [[*sorted(row), 9] for row in batch.inputs.tolist()]
    assert batch.targets.tolist() == solved
    assert batch.begun is not None
    assert batch.begun.tolist() == [[8, *row[:-1]] for row in solved]


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
    assert SORTING.baselines(SortingKeys(vocab=vocab), length).shortcut == pytest.approx(share, abs=1e-9)


def test_shortcut_stays_below_one_at_large_lengths() -> None:
    shares = [SORTING.baselines(SortingKeys(), length).shortcut or 0.0 for length in (32, 256, 1024)]
    assert 0 < shares[0] < shares[1] < shares[2] < 1


@pytest.mark.parametrize(("vocab", "length"), [(8, 0), (1, 8)])
def test_sizes_that_do_not_fit_are_refused(vocab: int, length: int) -> None:
    with pytest.raises(UsageError, match="sorting"):
        SORTING.check(SortingKeys(vocab=vocab), length)
