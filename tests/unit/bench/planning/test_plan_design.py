"""Plans of suites with an experimental design: the points, and the effect of overrides."""

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
    configs = [group.config for group, _ in group_cases(cases)]
    return [(p.seq_len, p.heads, p.dtype, p.causal, p.fill) for p in configs]


def test_a_design_plans_all_variants_at_each_point() -> None:
    cases = tiny_suites.plan(DESIGN)
    assert len(set(_points(cases))) == len(_points(cases)) == 12
    assert len(cases) == 24
    assert set(values_of(cases, "seq_len")) == {24, 72, 200}
    assert set(values_of(cases, "fill")) == {"full", "half", "packed"}
    assert values_of(cases, "max_len") == [200]


def test_a_part_may_have_its_own_design() -> None:
    parts = DESIGN.replace("design   =", "#") + '[[part]]\nname = "few"\ndesign = { points = 9, seed = 3 }\n'
    parts += '[[part]]\nname = "all"\naxes = { causal = [true], seq_len = [24] }\n'
    cases = tiny_suites.plan(parts)
    few, every = ([c for c in cases if c.group.part == name] for name in ("few", "all"))
    assert (len(few), len(every)) == (2 * 9, 2 * 3 * 2 * 3)


def test_the_points_depend_on_the_seed() -> None:
    assert _points(tiny_suites.plan(DESIGN)) == _points(tiny_suites.plan(DESIGN))
    assert _points(tiny_suites.plan(DESIGN)) != _points(tiny_suites.plan(DESIGN.replace("12 }", "12, seed = 1 }")))


def test_points_above_most_flops_are_excluded() -> None:
    most = 4 * 2 * 200**2 * 8  # at full length, two heads are affordable and four are not
    cases = tiny_suites.plan(DESIGN.replace("12 }", f"12, most_flops = {most} }}"))
    assert {heads for n, heads, *_ in _points(cases) if n == 200} == {2}
    assert len(_points(cases)) == 12
    with pytest.raises(UsageError, match="part 'all': design: exact attention needs more than 10 operations"):
        tiny_suites.plan(DESIGN.replace("12 }", "12, most_flops = 10 }"))


def test_overrides_keep_the_number_of_points_if_possible() -> None:
    cases = tiny_suites.plan(DESIGN, axes={"heads": [2], "dtype": ["float64"]})
    assert len(_points(cases)) == 12
    assert values_of(cases, "heads") == [2]
    assert (
        len(_points(tiny_suites.plan(DESIGN, axes={"seq_len": [24], "heads": [2], "causal": [True]}))) == 6
    )  # there are no more combinations


def test_quick_plans_the_fewest_points_that_separate_all_effects() -> None:
    assert len(_points(tiny_suites.plan(DESIGN, quick=True))) == 1 + 1 + 1 + 1 + 1 + 2


def test_too_few_points_are_refused() -> None:
    with pytest.raises(UsageError, match="6 points cannot separate 6 effects; give at least 7"):
        tiny_suites.plan(DESIGN.replace("12 }", "6 }"))


def test_tasks_without_the_varied_axes_are_planned_once() -> None:
    cases = tiny_suites.plan(DESIGN.replace('"forward"', '"forward", "fidelity"').replace(', "float64"', ""))
    fidelity = [(c.variant, c.group.config.layer, c.group.config.causal) for c in cases if c.group.task == "fidelity"]
    assert len(set(fidelity)) == len(fidelity) == 2 * 3 * 2


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_a_design_cannot_vary_causal_in_decode_or_prefill(mode: str) -> None:
    text = DESIGN.replace('"forward"', f'"{mode}"').replace(', "half", "packed"', "")
    with pytest.raises(UsageError, match=f"{mode}: always causal, so a design cannot vary causal"):
        tiny_suites.plan(text)
    assert set(values_of(tiny_suites.plan(text, axes={"causal": [True]}), "causal")) == {True}
