"""Plans of suites with a design: which points are measured, and what overrides make of them."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_suites
from tiny_suites import values_of

from efficient_attn.bench.case import Case, group_cases
from efficient_attn.errors import UsageError

DESIGN = """
title    = "Points"
measure  = ["forward"]
baseline = "full"
design   = { points = 12 }
variant  = [{ name = "full" }, { name = "linear" }]
[axes]
threads  = [1]
seq_len  = [24, 72, 200]
heads    = [2, 4, 8]
dtype    = ["float32", "float64"]
causal   = [false, true]
fill     = ["full", "half", "packed"]
[dims]
head_dim = 8
"""


def _points(cases: list[Case]) -> list[tuple[Any, ...]]:
    places = [cell.config for cell, _ in group_cases(cases)]
    return [(p.seq_len, p.heads, p.dtype, p.causal, p.fill) for p in places]


def test_a_design_measures_so_many_places_and_all_variants_in_each() -> None:
    cases = tiny_suites.plan(DESIGN)
    assert len(set(_points(cases))) == len(_points(cases)) == 12
    assert len(cases) == 24
    assert set(values_of(cases, "seq_len")) == {24, 72, 200}
    assert set(values_of(cases, "fill")) == {"full", "half", "packed"}
    assert values_of(cases, "max_len") == [200]


def test_a_part_may_have_a_design_of_its_own() -> None:
    parts = DESIGN.replace("design   =", "#") + '[[part]]\nname = "few"\ndesign = { points = 9, seed = 3 }\n'
    parts += '[[part]]\nname = "all"\naxes = { causal = [true], seq_len = [24] }\n'
    cases = tiny_suites.plan(parts)
    few, every = ([c for c in cases if c.group.part == name] for name in ("few", "all"))
    assert (len(few), len(every)) == (2 * 9, 2 * 3 * 2 * 3)


def test_the_seed_chooses_other_points() -> None:
    assert _points(tiny_suites.plan(DESIGN)) == _points(tiny_suites.plan(DESIGN))
    assert _points(tiny_suites.plan(DESIGN)) != _points(tiny_suites.plan(DESIGN.replace("12 }", "12, seed = 1 }")))


def test_places_that_take_exact_attention_too_long_are_left_out() -> None:
    most = 4 * 2 * 200**2 * 8  # the longest rows with two heads, no more
    cases = tiny_suites.plan(DESIGN.replace("12 }", f"12, most_flops = {most} }}"))
    assert {heads for n, heads, *_ in _points(cases) if n == 200} == {2}
    assert len(_points(cases)) == 12
    with pytest.raises(UsageError, match="part 'all': design: exact attention needs more than 10 operations"):
        tiny_suites.plan(DESIGN.replace("12 }", "12, most_flops = 10 }"))


def test_overrides_make_another_design_of_as_many_points() -> None:
    cases = tiny_suites.plan(DESIGN, axes={"heads": [2], "dtype": ["float64"]})
    assert len(_points(cases)) == 12
    assert values_of(cases, "heads") == [2]
    assert (
        len(_points(tiny_suites.plan(DESIGN, axes={"seq_len": [24], "heads": [2], "causal": [True]}))) == 6
    )  # all there are


def test_a_trial_takes_as_few_points_as_can_tell_the_effects_apart() -> None:
    assert len(_points(tiny_suites.plan(DESIGN, quick=True))) == 1 + 1 + 1 + 1 + 1 + 2


def test_too_few_points_are_refused() -> None:
    with pytest.raises(UsageError, match="6 points cannot separate 6 effects; give at least 7"):
        tiny_suites.plan(DESIGN.replace("12 }", "6 }"))


def test_what_has_no_such_axis_is_judged_once() -> None:
    cases = tiny_suites.plan(DESIGN.replace('"forward"', '"forward", "fidelity"').replace(', "float64"', ""))
    judged = [(c.variant, c.group.config.layer, c.group.config.causal) for c in cases if c.group.task == "fidelity"]
    assert len(set(judged)) == len(judged) == 2 * 3 * 2


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_steps_are_causal_whatever_a_design_would_vary(mode: str) -> None:
    text = DESIGN.replace('"forward"', f'"{mode}"').replace(', "half", "packed"', "")
    with pytest.raises(UsageError, match=f"{mode}: always causal, so a design cannot vary causal"):
        tiny_suites.plan(text)
    assert set(values_of(tiny_suites.plan(text, axes={"causal": [True]}), "causal")) == {True}
