"""Plans of suites with shapes: sizes that go together are one place, not axes that multiply."""

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


def _places(cases: list[Case]) -> list[tuple[Any, ...]]:
    """Batch, heads, length and width of each cell, each once."""
    places = [cell.config for cell, _ in group_cases(cases)]
    return list(dict.fromkeys((p.batch, p.heads, p.seq_len, p.head_dim) for p in places))


def test_sizes_of_a_shape_stay_together_and_all_else_varies_at_each() -> None:
    cases = tiny_suites.plan(SHAPES)
    assert _places(cases) == [(2, 8, 40, 16), (1, 32, 24, 64), (1, 4, 100, 64)]  # what none says is the default
    assert len(cases) == 2 * 3 * 2 * 2
    assert {(c.group.config.heads, c.kv_heads) for c in cases} == {(8, 8), (32, 32), (4, 2)}


def test_a_shape_is_made_for_its_own_length() -> None:
    assert {(c.group.config.seq_len, c.group.config.max_len) for c in tiny_suites.plan(SHAPES)} == {
        (40, 40),
        (24, 24),
        (100, 100),
    }


def test_a_parts_own_shapes_replace_those_at_the_top() -> None:
    assert _places(tiny_suites.plan(WITH_DIMS)) == [(1, 3, 12, 8)]
    both = WITH_DIMS + "[[part]]\nname = 'taken'\n"
    assert len(_places(tiny_suites.plan(both))) == 1 + 3


def test_a_parts_own_shapes_go_before_dims_and_axes_at_the_top() -> None:
    text = tiny_suites.SEVERAL + '[[part]]\nname = "own"\nshapes = [{ seq_len = 12, heads = 3 }]\n'
    assert _places(tiny_suites.plan(text)) == [(1, 3, 12, 8)]


def test_an_override_replaces_a_size_of_every_shape() -> None:
    assert _places(tiny_suites.plan(SHAPES, axes={"seq_len": [8, 16]})) == [
        *((2, 8, 8, 16), (2, 8, 16, 16), (1, 32, 8, 64), (1, 32, 16, 64), (1, 4, 8, 64), (1, 4, 16, 64)),
    ]


def test_shapes_that_an_override_makes_alike_are_measured_once() -> None:
    everything = {"batch": [1], "heads": [4], "kv_heads": [4], "head_dim": [8]}
    assert _places(tiny_suites.plan(SHAPES, axes={**everything, "seq_len": [16]})) == [(1, 4, 16, 8)]
    assert len(tiny_suites.plan(SHAPES, axes={**everything, "seq_len": [16]})) == 2 * 2 * 2


def test_a_trial_takes_two_shapes() -> None:
    assert _places(tiny_suites.plan(SHAPES, quick=True)) == [(2, 8, 40, 16), (1, 32, 24, 64)]


def test_what_has_no_shape_is_judged_once() -> None:
    cases = tiny_suites.plan(SHAPES.replace('"forward"', '"forward", "fidelity"').replace(', "float64"', ""))
    layers = [(c.variant, c.group.config.layer, c.group.config.causal) for c in cases if c.group.task == "fidelity"]
    assert len(set(layers)) == len(layers) > 0
    assert values_of([c for c in cases if c.group.task == "speed"], "causal") == [False, True]
