"""The speed task: planned groups."""

from __future__ import annotations

from dataclasses import replace
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


def _list_cross_checked(text: str, **overrides: Any) -> list[tuple[str | None, str, int, int, bool]]:
    configs = [c.group.config for c in tiny_suites.plan(text, **overrides) if c.keys.process_memory]
    return list(dict.fromkeys((c.mode, c.dtype, c.seq_len, c.batch, c.causal) for c in configs))


def test_the_longest_configuration_of_a_mode_and_dtype_is_cross_checked() -> None:
    text = SEVERAL.replace(
        '"forward", "peak_memory"', '"forward", "forward_backward", "prefill", "decode", "peak_memory"'
    )
    axes = {"dtype": ["float32", "bfloat16"], "batch": [2, 1], "seq_len": [16, 64, 32]}
    expected = {
        (mode, dtype, 64, 2, mode == "decode")
        for mode in ("forward", "forward_backward", "decode")
        for dtype in ("float32", "bfloat16")
    }
    found = _list_cross_checked(text, axes=axes)
    assert len(found) == len(expected)
    assert set(found) == expected
    cases = [c for c in tiny_suites.plan(text, axes=axes) if c.keys.process_memory]
    assert len(cases) == 4 * len(expected)  # every mechanism


def test_nothing_is_cross_checked_without_counted_memory_or_on_other_devices() -> None:
    assert not _list_cross_checked(SEVERAL.replace('"forward", "peak_memory"', '"forward", "prefill"'))
    assert not _list_cross_checked(SEVERAL, axes={"device": ["cuda"]})


def test_the_cross_check_does_not_change_a_case() -> None:
    """A longer length in the same suite, at which it is made instead, leaves the rows of the others valid."""
    short, long = (tiny_suites.plan(SEVERAL, axes={"seq_len": lengths}) for lengths in ([64], [64, 32]))
    assert [c.key for c in short] == [c.key for c in long if c.group.config.seq_len == 64]
    case, other = short[0], next(c for c in short if not c.keys.process_memory)
    assert case.keys.process_memory
    assert "process_memory" not in dict(other.group.keys)
    bare = replace(case, group=replace(case.group, keys=other.group.keys))
    assert bare.digest == case.digest
