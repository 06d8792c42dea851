"""Reach: how far back a mechanism lets a model see, and how much of a task lies within that."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from .problem import LearnKeys, Problem

if TYPE_CHECKING:
    from ...bench.case import Case

EXAMPLES = 2_000


def count_reach(case: Case) -> int | None:
    """Of how many last positions, its own included, a query may see any; None where that is not bounded, or where first
    positions are seen from everywhere."""
    from ...patterns import Geometry
    from ...variants.sparse.engine import SparseAttention

    attn, n = case.create(), case.cell.place.seq_len
    if not isinstance(attn, SparseAttention):
        return None
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    seen = np.asarray(attn.pattern.allows(i, j, Geometry(n, n, 0, True))) & (j <= i)
    span = int((np.where(seen, i - j, 0)).max()) + 1
    return span if span < n else None


@cache
def share_within(problem: Problem, keys: LearnKeys, length: int, far: int) -> float:
    """The share of answers that lie at most so far back, of many examples."""
    batch = problem.draw(keys, length, EXAMPLES, np.random.default_rng(0), "test")
    assert batch.distance is not None
    asked = batch.distance[batch.distance >= 0]
    return float((asked <= far).mean())
