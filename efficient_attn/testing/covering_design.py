"""A covering design: few cases in which every pair of levels, and triples of important factors, occur together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

Levels = Mapping[str, Sequence[Any]]  # of each factor, the simplest first; hashable
Case = Mapping[str, Any]

POOL_SIZE = 2500  # random cases to choose from
CANDIDATES = 30  # cases that are compared for each choice


def cover(
    levels: Levels,
    *,
    seed: int,
    together: Sequence[str] = (),
    allowed: Callable[[Case], bool] = lambda case: True,
    cost: Callable[[Case], float] = lambda case: 1.0,
) -> list[Case]:
    """Choose cases that contain every pair of levels of a random pool, cheap ones preferred.

    together: factors of which triples are covered as well, only distinguishing the simplest level from all others. The
    same seed gives the same cases.
    """
    random = Random(seed)
    drawn = ({name: random.choice(list(values)) for name, values in levels.items()} for _ in range(POOL_SIZE))
    pool = [case for case in drawn if allowed(case)]
    combinations_of = [_combinations(case, levels, together) for case in pool]
    indices = defaultdict(list)  # in the pool, of the cases with a combination
    for index, covered in enumerate(combinations_of):
        for combination in covered:
            indices[combination].append(index)
    missing, chosen = set(indices), []
    while missing:
        rarest = min(sorted(missing, key=repr), key=lambda combination: len(indices[combination]))
        candidates = random.sample(indices[rarest], min(CANDIDATES, len(indices[rarest])))
        best = max(candidates, key=lambda index: len(combinations_of[index] & missing) / cost(pool[index]))
        missing -= combinations_of[best]
        chosen.append(pool[best])
    return chosen


def _combinations(case: Case, levels: Levels, together: Sequence[str]) -> frozenset[Any]:
    pairs = combinations(case.items(), 2)
    coarse = [(name, case[name] == levels[name][0]) for name in together]
    return frozenset((*pairs, *combinations(coarse, 3)))


def shrink(case: Case, levels: Levels, fails: Callable[[Case], bool]) -> Case:
    """Simplify a failing case: each factor in turn gets the simplest level with which the case still fails."""
    for name, values in levels.items():
        simpler = ({**case, name: value} for value in values[: list(values).index(case[name])])
        case = next(filter(fails, simpler), case)
    return case
