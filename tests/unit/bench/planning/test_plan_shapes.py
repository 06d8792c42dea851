"""Plans of suites with shapes: the sizes of a shape are used together and are not combined."""

from __future__ import annotations

from typing import Any

import tiny_suites
from tiny_suites import values_of

from efficient_attn.bench.case import Case, group_cases

SHAPES = """
title    = "Shapes"
measure  = ["forward"]
baseline = "full"
variant  = [{ name = "full" }, { name = "linear" }]
shapes   = [
  { batch = 2, heads = 8, seq_len = 40, head_dim = 16 },
  { heads = 32, seq_len = 24 },
  { heads = 4, kv_heads = 2, seq_len = 100 },
]
[axes]
threads = [1]
dtype   = ["float32", "float64"]
causal  = [false, true]
"""
WITH_DIMS = SHAPES + "[[part]]\nname = 'own'\nshapes = [{ seq_len = 12 }]\ndims = { heads = 3, head_dim = 8 }\n"


def _list_shapes(cases: list[Case]) -> list[tuple[Any, ...]]:
    """The distinct batch sizes, heads, lengths and head dimensions of the groups, in order."""
    configs = [group.config for group, _ in group_cases(cases)]
    return list(dict.fromkeys((p.batch, p.heads, p.seq_len, p.head_dim) for p in configs))


def test_other_axes_vary_at_each_shape() -> None:
    cases = tiny_suites.plan(SHAPES)
    assert _list_shapes(cases) == [(2, 8, 40, 16), (1, 32, 24, 64), (1, 4, 100, 64)]
    assert len(cases) == 2 * 3 * 2 * 2
    assert {(c.group.config.heads, c.kv_heads) for c in cases} == {(8, 8), (32, 32), (4, 2)}


def test_max_len_is_the_length_of_each_shape() -> None:
    assert {(c.group.config.seq_len, c.group.config.max_len) for c in tiny_suites.plan(SHAPES)} == {
        (40, 40),
        (24, 24),
        (100, 100),
    }


def test_shapes_of_a_part_replace_those_of_the_top_level() -> None:
    assert _list_shapes(tiny_suites.plan(WITH_DIMS)) == [(1, 3, 12, 8)]
    both = WITH_DIMS + "[[part]]\nname = 'taken'\n"
    assert len(_list_shapes(tiny_suites.plan(both))) == 1 + 3


def test_shapes_of_a_part_override_dims_and_axes_of_the_top_level() -> None:
    text = tiny_suites.SEVERAL + '[[part]]\nname = "own"\nshapes = [{ seq_len = 12, heads = 3 }]\n'
    assert _list_shapes(tiny_suites.plan(text)) == [(1, 3, 12, 8)]


def test_an_override_replaces_a_size_of_every_shape() -> None:
    assert _list_shapes(tiny_suites.plan(SHAPES, axes={"seq_len": [8, 16]})) == [
        *((2, 8, 8, 16), (2, 8, 16, 16), (1, 32, 8, 64), (1, 32, 16, 64), (1, 4, 8, 64), (1, 4, 16, 64)),
    ]


def test_shapes_that_are_equal_after_overrides_are_planned_once() -> None:
    everything = {"batch": [1], "heads": [4], "kv_heads": [4], "head_dim": [8]}
    assert _list_shapes(tiny_suites.plan(SHAPES, axes={**everything, "seq_len": [16]})) == [(1, 4, 16, 8)]
    assert len(tiny_suites.plan(SHAPES, axes={**everything, "seq_len": [16]})) == 2 * 2 * 2


def test_quick_plans_two_shapes() -> None:
    assert _list_shapes(tiny_suites.plan(SHAPES, quick=True)) == [(2, 8, 40, 16), (1, 32, 24, 64)]


def test_tasks_without_shapes_are_planned_once() -> None:
    cases = tiny_suites.plan(SHAPES.replace('"forward"', '"forward", "fidelity"').replace(', "float64"', ""))
    layers = [(c.variant, c.group.config.layer, c.group.config.causal) for c in cases if c.group.task == "fidelity"]
    assert len(set(layers)) == len(layers) > 0
    assert values_of([c for c in cases if c.group.task == "speed"], "causal") == [False, True]
