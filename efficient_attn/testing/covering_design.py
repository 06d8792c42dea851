"""A covering design: few cases in which every pair of levels, and triples of important factors, occur together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from random import Random

Levels = Mapping[str, Sequence[Hashable]]  # of each factor, the simplest first
Case = Mapping[str, Hashable]

POOL = 2500  # drawn cases to choose from
LOOKS = 30  # of them at each choice


def cover(
    levels: Levels,
    *,
    seed: int,
    together: Sequence[str] = (),
    allowed: Callable[[Case], bool] = lambda case: True,
    cost: Callable[[Case], float] = lambda case: 1.0,
) -> list[Case]:
    """Cases with every pair of levels in the random pool, cheap ones preferred.

    together: factors whose triples count as well, each as its simplest level or another. The same seed gives the same
    cases.
    """
    order = Random(seed)
    drawn = ({name: order.choice(list(values)) for name, values in levels.items()} for _ in range(POOL))
    pool = [case for case in drawn if allowed(case)]
    features = [_features(case, levels, together) for case in pool]
    holders = defaultdict(list)
    for index, feature_set in enumerate(features):
        for feature in feature_set:
            holders[feature].append(index)
    missing, chosen = set(holders), []
    while missing:
        rarest = min(sorted(missing, key=repr), key=lambda feature: len(holders[feature]))
        some = holders[rarest]
        looked = order.sample(some, min(LOOKS, len(some)))
        best = max(looked, key=lambda index: len(features[index] & missing) / cost(pool[index]))
        missing -= features[best]
        chosen.append(pool[best])
    return chosen


def _features(case: Case, levels: Levels, together: Sequence[str]) -> frozenset[Hashable]:
    pairs = combinations(case.items(), 2)
    coarse = [(name, case[name] == levels[name][0]) for name in together]
    return frozenset((*pairs, *combinations(coarse, 3)))


def shrink(case: Case, levels: Levels, fails: Callable[[Case], bool]) -> Case:
    """The simplest case that still fails: each factor in turn gets the simplest level with which it does."""
    for name, values in levels.items():
        for value in values[: list(values).index(case[name])]:
            simpler = {**case, name: value}
            if fails(simpler):
                case = simpler
                break
    return case
