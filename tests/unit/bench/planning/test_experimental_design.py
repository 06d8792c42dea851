"""Experimental designs: few, balanced, reproducible points from which every effect can be estimated."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tiny_suites

from efficient_attn.bench.planning.experimental_design import choose_points, list_contrasts, list_sections
from efficient_attn.errors import UsageError
from efficient_attn.results.effects import build_design_matrix, is_estimable, list_steps

TWO: dict[str, list[Any]] = {name: [1, 2] for name in "abcdefg"}
MIXED: dict[str, list[Any]] = {"heads": [4, 12, 32], "batch": [1, 3, 8], "dtype": ["float32", "bfloat16"]}
SIX = [
    *((4, 1, "float32"), (4, 3, "bfloat16"), (12, 3, "float32"), (12, 8, "bfloat16")),
    *((32, 1, "bfloat16"), (32, 8, "float32")),
]


def _every(levels: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(levels, values, strict=True)) for values in itertools.product(*levels.values())]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_eight_points_of_four_factors_are_an_orthogonal_array(seed: int) -> None:
    four = {name: TWO[name] for name in "abcd"}
    points = choose_points(_every(four), four, 8, seed)
    x = build_design_matrix(points, list_steps(four))[:, 1:] * 2 - 1
    assert (x.T @ x == 8 * np.eye(4)).all()


def test_levels_of_a_factor_are_about_equally_frequent() -> None:
    points = choose_points(_every(MIXED), MIXED, 12, 0)
    for factor, levels in MIXED.items():
        counts = [sum(p[factor] == level for p in points) for level in levels]
        assert max(counts) - min(counts) <= 1


def test_points_are_distinct_and_in_grid_order() -> None:
    every = _every(MIXED)
    points = choose_points(every, MIXED, 12, 0)
    positions = [every.index(dict(p)) for p in points]
    assert positions == sorted(set(positions))
    assert len(positions) == 12


def test_points_depend_on_the_seed() -> None:
    designs = [choose_points(_every(MIXED), MIXED, 7, seed) for seed in (0, 0, 1)]
    assert designs[0] == designs[1] != designs[2]


def test_points_are_the_same_on_every_machine() -> None:
    """Otherwise runs of two machines could not be compared."""
    points = choose_points(_every(MIXED), MIXED, 6, 0)
    assert [(p["heads"], p["batch"], p["dtype"]) for p in points] == SIX


def test_effects_are_estimable_with_a_corner_excluded() -> None:
    levels: dict[str, list[Any]] = {"heads": [4, 32], "batch": [1, 8], "seq_len": [64, 512, 4096]}
    small = [p for p in _every(levels) if p["heads"] * p["batch"] * p["seq_len"] <= 32 * 4096]
    points = choose_points(small, levels, 6, 0)
    assert is_estimable(points, list_steps(levels))


def test_few_combinations_are_all_measured() -> None:
    every = _every({"heads": [4, 32]})
    assert choose_points(every, {"heads": [4, 32]}, 8, 0) == every


def test_too_few_points_are_refused_with_the_required_number() -> None:
    assert len(list_contrasts(TWO)) == 7
    with pytest.raises(UsageError, match="7 points cannot separate 7 effects; give at least 8"):
        choose_points(_every(TWO), TWO, 7, 0)


def test_factors_that_always_vary_together_are_refused() -> None:
    bound = [{"a": x, "b": x, "c": y} for x, y in itertools.product((1, 2), range(1, 9))]
    levels: dict[str, list[Any]] = {"a": [1, 2], "b": [1, 2], "c": list(range(1, 9))}
    with pytest.raises(UsageError, match="do not separate the effects of a, b, c"):
        choose_points(bound, levels, 8, 0)


def test_the_section_of_a_design_names_its_part_and_factors() -> None:
    text = tiny_suites.TINY + '[[part]]\nname = "one"\n[[part]]\nname = "two"\ndesign = { points = 4 }\n'
    text += "axes = { heads = [1, 2], batch = [3, 3], causal = [false, true] }\n"
    (section,) = list_sections("my-suite", tiny_suites.parse(text).suite)
    assert (section.name, section.suite, section.part) == ("effects_my_suite_2", "my-suite", "two")
    assert [column.name for column in section.columns] == ["causal", "heads"]
