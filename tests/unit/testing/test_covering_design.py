"""A covering design contains every pair of levels; failing cases are simplified."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product

from efficient_attn.testing.covering_design import Case, cover, cover_levels, shrink

LEVELS = {"n": (1, 2, 3, 4), "dtype": ("double", "float"), "padding": (None, "left", "right"), "causal": (False, True)}


def test_every_pair_of_levels_occurs_together() -> None:
    cases = cover(LEVELS, seed=0)
    for (a, left), (b, right) in combinations(LEVELS.items(), 2):
        for one, other in product(left, right):
            assert any(case[a] == one and case[b] == other for case in cases), (a, one, b, other)
    assert len(cases) < 20  # of 48


def test_chosen_factors_occur_three_by_three() -> None:
    names = ("dtype", "padding", "causal")
    cases = cover(LEVELS, seed=0, together=names)
    seen = {tuple(case[name] == LEVELS[name][0] for name in names) for case in cases}
    assert seen == set(product((True, False), repeat=3))


def test_a_seed_gives_the_same_cases_and_another_others() -> None:
    assert cover(LEVELS, seed=3) == cover(LEVELS, seed=3) != cover(LEVELS, seed=4)


def test_forbidden_cases_never_occur_and_expensive_ones_rarely() -> None:
    cases = cover(LEVELS, seed=0, allowed=lambda c: c["n"] != 4 or c["causal"] is False)
    assert all(case["causal"] is False for case in cases if case["n"] == 4)
    expensive = cover(LEVELS, seed=0, cost=lambda c: 100.0 if c["n"] == 3 else 1.0)
    assert sum(case["n"] == 3 for case in expensive) <= 4


def test_a_failing_case_is_simplified() -> None:
    case = {"n": 4, "dtype": "float", "padding": "right", "causal": True}
    found = shrink(case, LEVELS, lambda c: c["n"] >= 2 and c["dtype"] == "float")  # pyright: ignore[reportOperatorIssue]
    assert found == {"n": 2, "dtype": "float", "padding": None, "causal": False}


def test_simplifying_ends_with_the_time() -> None:
    case, tried = {"n": 4, "dtype": "float", "padding": "right", "causal": True}, list[object]()

    def fails(simpler: Mapping[str, object]) -> bool:
        tried.append(simpler)
        return True

    assert shrink(case, LEVELS, fails, seconds=0) == case
    assert not tried


def test_a_pair_that_is_rare_among_allowed_cases_is_covered() -> None:
    levels = {name: tuple(range(30)) for name in "abc"}
    cases = cover(levels, seed=0, allowed=lambda case: case["a"] < 15 or case["b"] + case["c"] == 0)
    assert any(case["a"] == 29 and case["b"] == 0 for case in cases)
    assert {(case["b"], case["c"]) for case in cases} >= set(product(range(1, 30), repeat=2))


def test_a_part_has_every_level_and_stays_within_its_budget() -> None:
    for seed in range(5):
        part = cover_levels(LEVELS, seed=seed, budget=12.0)
        assert len(part) == 12
        assert all({case[name] for case in part} == set(values) for name, values in LEVELS.items())
        assert part == cover_levels(LEVELS, seed=seed, budget=12.0) != cover_levels(LEVELS, seed=seed + 1, budget=12.0)
        assert len(cover_levels(LEVELS, seed=seed, budget=3.5)) == 3


def test_a_part_prefers_cheap_cases_and_leaves_out_what_the_budget_does_not_allow() -> None:
    def cost(case: Case) -> float:
        return {1: 1.0, 2: 1.0, 3: 10.0, 4: 100.0}[case["n"]]

    part = cover_levels(LEVELS, seed=0, cost=cost, budget=20.0)
    assert {case["n"] for case in part} == {1, 2, 3}
    assert sum(map(cost, part)) <= 20
    assert sum(case["n"] == 3 for case in part) == 1


def test_forbidden_cases_are_not_in_a_part() -> None:
    def allowed(case: Case) -> bool:
        return case["padding"] is None or case["causal"]

    part = cover_levels(LEVELS, seed=0, allowed=allowed, budget=30.0)
    assert all(map(allowed, part))
    assert all({case[name] for case in part} == set(values) for name, values in LEVELS.items())
