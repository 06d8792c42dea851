"""Experimental designs: a few of many combinations, from which the main effect of every factor can be estimated."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...errors import UsageError
from ...results.effects import EffectStep, is_estimable, list_steps
from ...results.section import Column, Section
from .suite import Suite

STARTS = 12  # searches from different initial points, of which the best counts

Point: TypeAlias = Mapping[str, Any]
Levels: TypeAlias = Mapping[str, Sequence[Any]]


def choose_points(candidates: Sequence[Point], levels: Levels, count: int, seed: int) -> list[Point]:
    """Choose ``count`` points, with every level of each factor, and every pair of levels, equally often as far as
    possible, in their original order. Only integers are compared, so that every machine chooses the same.

    Raises `UsageError` for too few points to separate the effects of all factors.
    """
    if len(candidates) <= count:
        return list(candidates)
    varied = {factor: values for factor, values in levels.items() if len(values) > 1}
    steps = list_contrasts(levels)
    if count <= len(steps):
        raise UsageError(f"design: {count} points cannot separate {len(steps)} effects; give at least {len(steps) + 1}")
    table = np.array([[values.index(p[f]) for f, values in varied.items()] for p in candidates])
    weights = np.array([len(values) for values in varied.values()])
    rng, best = random.Random(seed), None
    for _ in range(STARTS):
        similarity, chosen = _search(table, weights, rng.sample(range(len(candidates)), count))
        points = [candidates[i] for i in sorted(chosen)]
        if (best is None or similarity < best[0]) and is_estimable(points, steps):
            best = similarity, points
    if best is None:
        raise UsageError(f"design: {count} points do not separate the effects of {', '.join(varied)}; give more points")
    return best[1]


def _search(table: np.ndarray, weights: np.ndarray, chosen: list[int]) -> tuple[int, list[int]]:
    """Exchange points while that makes the chosen ones less similar; returns the total similarity, and the points.

    The similarity of two points is the sum over their common levels, with more weight for rare levels. The sum of its
    squares over all pairs is smallest for an orthogonal array (Xu's J2, Technometrics 44, 2002).
    """

    def square_similarity(point: int) -> np.ndarray:
        return ((table == table[point]) @ weights) ** 2

    total, improved = sum(square_similarity(point) for point in chosen), True
    assert isinstance(total, np.ndarray)
    while improved:
        improved = False
        for index, point in enumerate(chosen):
            others = total - square_similarity(point)
            costs = others.copy()
            costs[[p for p in chosen if p != point]] = np.iinfo(costs.dtype).max  # no point is measured twice
            new = int(costs.argmin())
            if costs[new] < costs[point]:
                chosen[index], total, improved = new, others + square_similarity(new), True
    return int(total[chosen].sum()), chosen


def list_contrasts(levels: Levels) -> list[EffectStep]:
    """The effects of all varied factors: numbers in ascending order, categories as in the suite."""
    return list_steps(
        {f: values if isinstance(values[0], str) else sorted(values) for f, values in levels.items() if len(values) > 1}
    )


def list_sections(name: str, suite: Suite) -> list[Section]:
    """The page's sections for parts with a design: the main effects of their axes. name: the suite's."""
    return [
        Section(
            name=re.sub(r"[^a-z0-9]+", "_", f"effects_{name}_{number}".lower()),
            task="speed",
            title=f"Effects: {part.name}",
            columns=tuple(
                Column(name=x, heading=x.replace("_", " "))
                for x, values in part.axes.given.items()
                if len(set(values)) > 1
            ),
            y="speedup",
            layout="effects",
            suite=name,
            part=part.name,
        )
        for number, part in enumerate(suite.parts(), 1)
        if part.design
    ]
