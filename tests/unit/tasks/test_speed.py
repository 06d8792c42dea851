"""The speed task: planned groups."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_suites
from tiny_suites import SEVERAL, values_of

from efficient_attn.errors import UsageError


@pytest.mark.parametrize("mode", ["decode", "prefill"])
@pytest.mark.parametrize("causal", ["[false, true]", "[true]", "[false]"])
def test_decoding_is_causal_and_planned_once(mode: str, causal: str) -> None:
    text = SEVERAL.replace('"forward", "peak_memory"', f'"{mode}"').replace("[false, true]", causal)
    cases = tiny_suites.plan(text)
    assert len(cases) == 3 * 4
    assert values_of(cases, "causal") == [True]
    assert not any(c.keys.peak_memory for c in cases)


def test_decode_mode_does_not_change_forward_groups() -> None:
    cases = tiny_suites.plan(SEVERAL.replace('"peak_memory"', '"decode"'))
    assert values_of([c for c in cases if c.group.config.mode == "forward"], "causal") == [False, True]
    assert values_of([c for c in cases if c.group.config.mode == "decode"], "causal") == [True]


def test_max_len_is_the_longest_length() -> None:
    assert values_of(tiny_suites.plan(SEVERAL), "max_len") == [64]
    assert values_of(tiny_suites.plan(SEVERAL, axes={"seq_len": [100, 20]}), "max_len") == [100]


def test_memory_budget_applies_to_decode_and_can_be_overridden() -> None:
    text = SEVERAL.replace('"peak_memory"', '"decode"').replace("dims ", 'memory_budget = "2kB"\ndims ')

    def budgets(**overrides: Any) -> set[Any]:
        return {(c.group.config.mode, c.keys.memory_budget) for c in tiny_suites.plan(text, **overrides)}

    assert budgets() == {("forward", None), ("decode", 2000)}
    assert budgets(keys={"memory_budget": 5}) == {("forward", None), ("decode", 5)}
    assert {c.keys.memory_budget for c in tiny_suites.plan(SEVERAL.replace('"peak_memory"', '"decode"'))} == {None}
    with pytest.raises(UsageError, match="--set memory_budget: the suite trial has no task with this key"):
        tiny_suites.plan(SEVERAL, keys={"memory_budget": 5})
