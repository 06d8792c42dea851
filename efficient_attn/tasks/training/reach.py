"""Reach: how many positions back a model sees with a mechanism, and the share of answers within that."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from .problem import LearnKeys, Problem

if TYPE_CHECKING:
    from ...bench.case import Case

EXAMPLES = 2_000  # over which the share is counted


def count_reach(case: Case) -> int | None:
    """How many last positions, its own included, a query may see; None if unbounded, or if it sees first ones."""
    if case.group.of_blocks:
        return None
    pattern = getattr(case.create(), "pattern", None)
    reach = pattern.reach if pattern is not None else None
    return None if reach is None or reach.prefix else min(reach.back, case.group.config.seq_len - 1) + 1


def compute_lookback(span: int, layers: int, convolution: int = 0) -> int:
    """How many positions back a model sees, if each layer sees the last ``span`` positions, after a convolution."""
    return layers * (span - 1 + max(0, convolution - 1))


@cache
def compute_share_within(problem: Problem, keys: LearnKeys, length: int, max_distance: int) -> float:
    """The share of answers that are at most so many positions back."""
    batch = problem.draw(keys, length, EXAMPLES, np.random.default_rng(0), "test")
    assert batch.distance is not None
    distances = batch.distance[batch.distance >= 0]
    return float((distances <= max_distance).mean())
