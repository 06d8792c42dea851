"""State tracking: targets compared with products of permutation matrices, and the score of the simple rule."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from efficient_attn.errors import UsageError
from efficient_attn.tasks.problems.state_tracking import PARITY, S3, S5, compute_products
from efficient_attn.tasks.training.problem import Array, Batch, LearnKeys, Problem

KEYS = LearnKeys()
POINTS = {"parity": 2, "s3": 3, "s5": 5}
PROBLEMS = pytest.mark.parametrize("problem", [PARITY, S3, S5], ids=lambda problem: problem.name)


def _draw(problem: Problem, length: int, count: int, seed: int = 0) -> Batch:
    return problem.draw(KEYS, length, count, np.random.default_rng(seed), "train")


def _make_matrices(problem: Problem) -> Array:
    """Matrices that move a column of points: entry (i, j) is 1 if point j goes to i."""
    points = POINTS[problem.name]
    return np.array([[[p[j] == i for j in range(points)] for i in range(points)] for p in permutations(range(points))])


@PROBLEMS
def test_targets_are_products_of_permutation_matrices(problem: Problem) -> None:
    matrices, batch = _make_matrices(problem).astype(int), _draw(problem, 40, 20)
    for tokens, targets in zip(batch.inputs, batch.targets, strict=True):
        state = np.eye(POINTS[problem.name], dtype=int)
        for token, target in zip(tokens, targets, strict=True):
            state = matrices[token] @ state  # the new permutation is applied after the others
            assert (state == matrices[target]).all()


def test_parity_is_the_number_of_exchanges_modulo_2() -> None:
    batch = _draw(PARITY, 64, 50)
    assert (batch.targets == batch.inputs.cumsum(1) % 2).all()


@PROBLEMS
def test_every_missing_element_leaves_all_products_equally_likely(problem: Problem) -> None:
    products = compute_products(POINTS[problem.name])
    assert products.shape == (problem.outputs(KEYS),) * 2
    for table in (products, products.T):
        assert (np.sort(table, axis=0) == np.arange(len(table))[:, None]).all()
    assert (_draw(problem, 9, 3).distance == np.arange(9)).all()


@PROBLEMS
def test_labels_are_balanced_at_every_position(problem: Problem) -> None:
    elements, count = problem.outputs(KEYS), 24_000
    for targets in _draw(problem, 12, count).targets.T:
        assert (
            np.abs(np.bincount(targets, minlength=elements) / count - 1 / elements).max()
            < 5 / (count * elements) ** 0.5
        )


@PROBLEMS
def test_baselines_are_those_of_drawn_examples(problem: Problem) -> None:
    batch, baselines = _draw(problem, 8, 20_000), problem.baselines(KEYS, 8)
    (shortcut,) = baselines.shortcuts.values()
    assert shortcut == pytest.approx((batch.inputs == batch.targets).mean(), abs=0.005)
    assert baselines.chance == baselines.majority == 1 / problem.outputs(KEYS)


def test_a_window_is_credited_with_the_products_within_its_reach() -> None:
    from efficient_attn.tasks.training.reach import compute_share_within

    assert compute_share_within(S5, KEYS, 64, 15) == 16 / 64


def test_a_single_element_is_refused() -> None:
    with pytest.raises(UsageError, match="s3: a product needs a length of at least 2, got 1"):
        S3.check(KEYS, 1)
