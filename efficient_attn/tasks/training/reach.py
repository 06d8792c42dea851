"""Reach: how many positions back a model sees with a mechanism, and the share of answers within that."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ...patterns.facts import Geometry
from .problem import LearnKeys, Problem
from .shortcuts import compute_baselines, make_drawing_setup

if TYPE_CHECKING:
    from ...bench.case import Case


def count_reach(case: Case) -> int | None:
    """How many last positions, its own included, a query sees: one more than its window. None if unbounded, with gaps,
    or if it sees first ones."""
    if case.group.of_blocks:
        return None
    pattern, length = getattr(case.create(), "pattern", None), case.group.config.seq_len
    reach = pattern.reach if pattern is not None else None
    if pattern is None or reach is None or reach.prefix:
        return None
    back = min(reach.back, length - 1)
    sees = pattern.allows(back, np.arange(back + 1), Geometry(length, length, 0, causal=True))
    return back + 1 if np.all(sees) else None


def compute_lookback(span: int, layers: int, convolution: int = 0) -> int:
    """How many positions back a model sees, if each layer sees the last ``span`` positions, after a convolution."""
    return layers * (span - 1 + max(0, convolution - 1))


@cache
def compute_share_within(problem: Problem, keys: LearnKeys, length: int, max_distance: int) -> float:
    """The share of the tests' answers for which all needed tokens are at most so many positions back."""
    from .loop import draw

    batch = draw(make_drawing_setup(problem, keys, length), "test", keys.examples, 0)
    assert batch.distance is not None
    distances = batch.distance[batch.distance >= 0]
    return float((distances <= max_distance).mean())


def compute_reach_score(problem: Problem, case: Case) -> float | None:
    """The score of a model with the mechanism's reach on the tests: correct within it, and chance beyond. None if the
    reach is not bounded or not known, or the distances of answers are not."""
    if not problem.windowed or (span := count_reach(case)) is None:
        return None
    max_distance = compute_lookback(span, case.keys.layers or problem.recipe.layers, problem.recipe.convolution)
    within = compute_share_within(problem, case.keys, case.group.config.seq_len, max_distance)
    chance = compute_baselines(problem, case.keys, case.group.config.seq_len).chance
    return within + (1 - within) * chance
