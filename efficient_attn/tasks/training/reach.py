"""Reach: how far back a mechanism lets a model see, and how much of a task is within that."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from .problem import LearnKeys, Problem

if TYPE_CHECKING:
    from ...bench.case import Case

EXAMPLES = 2_000


def count_reach(case: Case) -> int | None:
    """The number of last positions, including its own, that a query may see; None if unbounded, or if first positions
    are visible from everywhere."""
    if case.group.of_blocks:
        return None
    pattern = getattr(case.create(), "pattern", None)
    reach = pattern.reach if pattern is not None else None
    return None if reach is None or reach.prefix else min(reach.back, case.group.config.seq_len - 1) + 1


def compute_lookback(span: int, layers: int, convolution: int = 0) -> int:
    """How many positions before its own a model sees, if a layer sees so many last ones: its inputs have seen as far,
    and the convolution extends it."""
    return layers * (span - 1 + max(0, convolution - 1))


@cache
def compute_share_within(problem: Problem, keys: LearnKeys, length: int, max_distance: int) -> float:
    """The share of answers that are at most so far back, over many examples."""
    batch = problem.draw(keys, length, EXAMPLES, np.random.default_rng(0), "test")
    assert batch.distance is not None
    distances = batch.distance[batch.distance >= 0]
    return float((distances <= max_distance).mean())
