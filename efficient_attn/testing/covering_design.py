"""A covering design: few cases in which every pair of levels, and triples of important factors, occur together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product, takewhile
from random import Random
from time import perf_counter
from typing import Any

Levels = Mapping[str, Sequence[Any]]  # of each factor, the simplest first; hashable
Case = Mapping[str, Any]

POOL_SIZE = 2500  # random cases to choose from
TRIES = 300  # to draw an allowed case of a pair that no random case has
PART_POOL_SIZE = 400  # random cases to choose a part from
CANDIDATES = 30  # cases that are compared for each choice
SHRINK_S = 30.0  # after which a failing case is not simplified further: of some mechanisms a call takes seconds


def cover(
    levels: Levels,
    *,
    seed: int,
    together: Sequence[str] = (),
    allowed: Callable[[Case], bool] = lambda case: True,
    cost: Callable[[Case], float] = lambda case: 1.0,
) -> list[Case]:
    """Choose allowed cases that contain every pair of levels that an allowed case can have, cheap ones preferred.

    together: factors of which triples are covered as well, as far as random cases have them, only distinguishing the
    simplest level from all others. The choice depends on nothing but the arguments.
    """
    random = Random(seed)

    draw = partial(_draw, random, levels, allowed)
    pool = [case for case in (draw() for _ in range(POOL_SIZE)) if case]
    random_pairs = {pair for case in pool for pair in iterate_pairs(case)}
    for first, second in combinations(levels, 2):
        for a, b in product(levels[first], levels[second]):
            if ((first, a), (second, b)) not in random_pairs:
                trials = (draw(**{first: a, second: b}) for _ in range(TRIES))
                pool += filter(None, [next(filter(None, trials), None)])
    combinations_of = [_combinations(case, levels, together) for case in pool]
    costs = [cost(case) for case in pool]
    indices = defaultdict(list)  # in the pool, of the cases with a combination
    for index, covered in enumerate(combinations_of):
        for combination in covered:
            indices[combination].append(index)
    missing, chosen = set(indices), []
    by_rarity = sorted(sorted(missing, key=repr), key=lambda combination: len(indices[combination]))
    for rarest in by_rarity:
        if rarest not in missing:
            continue
        candidates = random.sample(indices[rarest], min(CANDIDATES, len(indices[rarest])))
        best = max(candidates, key=lambda index: len(combinations_of[index] & missing) / costs[index])
        missing -= combinations_of[best]
        chosen.append(pool[best])
    return chosen


def _draw(random: Random, levels: Levels, allowed: Callable[[Case], bool], **fixed: Any) -> Case | None:
    """A random case with these levels; None if it is not allowed."""
    case = {name: random.choice(list(values)) for name, values in levels.items()} | fixed
    return case if allowed(case) else None


def cover_levels(
    levels: Levels,
    *,
    seed: int,
    allowed: Callable[[Case], bool] = lambda case: True,
    cost: Callable[[Case], float] = lambda case: 1.0,
    also: Callable[[Case], Iterable[str]] = lambda case: (),
    budget: float,
) -> list[Case]:
    """Choose random allowed cases of at most this cost in all: first those with most new levels for their cost, and any
    when no case has a new level that the budget allows. also: names of combinations that count as levels too."""
    random, left, chosen = Random(seed), budget, list[Case]()

    draw = partial(_draw, random, levels, allowed)
    pool = [case for case in (draw() for _ in range(PART_POOL_SIZE)) if case]
    for name, values in levels.items():
        for value in values:  # few random cases have a rare level, and fewer are cheap
            pool += filter(None, (draw(**{name: value}) for _ in range(CANDIDATES)))
    costs, levels_of = [cost(case) for case in pool], [{*case.items(), *also(case)} for case in pool]
    missing = set[Any]().union(*levels_of)
    while affordable := [i for i, c in enumerate(costs) if c <= left]:
        best = max(affordable, key=lambda i: len(missing & levels_of[i]) / costs[i])
        if not missing & levels_of[best]:
            best = random.choice(affordable)
        missing -= levels_of.pop(best)
        left -= costs.pop(best)
        chosen.append(pool.pop(best))
    return chosen


def iterate_pairs(case: Case) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Every pair of a case's levels, each with its factor."""
    return combinations(case.items(), 2)


def _combinations(case: Case, levels: Levels, together: Sequence[str]) -> frozenset[Any]:
    coarse = [(name, case[name] == levels[name][0]) for name in together]
    return frozenset((*iterate_pairs(case), *combinations(coarse, 3)))


def shrink(case: Case, levels: Levels, fails: Callable[[Case], bool], *, seconds: float = SHRINK_S) -> Case:
    """Simplify a failing case: each factor in turn gets the simplest level with which the case still fails, as long as
    there is time."""
    end = perf_counter() + seconds
    for name, values in levels.items():
        simpler = ({**case, name: value} for value in values[: list(values).index(case[name])])
        case = next(filter(fails, takewhile(lambda _: perf_counter() < end, simpler)), case)
    return case
