"""Blocks in a plan: layers next to mechanisms, and their selection with `--variant`."""

from __future__ import annotations

import pytest
import tiny_suites

from efficient_attn.bench.case import Case
from efficient_attn.errors import UsageError

LAYERS = """
title    = "Layers"
measure  = ["complexity"]
rounds   = 2
baseline = "gru"
axes     = { seq_len = [8, 16, 32, 64, 128], head_dim = [8, 16, 32, 64, 128], heads = [1], threads = [1] }
along    = ["length"]
[[part]]
name    = "mechanisms"
variant = [{ name = "full" }]
[[part]]
name  = "layers"
block = [{ name = "gru" }, { name = "convolution", options = { kernel = 5 } }, { name = "sliding_window" }]
"""


def _pairs(cases: list[Case]) -> list[tuple[str, str]]:
    return [(case.group.part, case.variant) for case in cases]


def test_blocks_are_planned_in_groups_of_their_own() -> None:
    cases = tiny_suites.plan(LAYERS)
    assert _pairs(cases) == [
        *(("mechanisms", "full"), ("layers", "gru")),
        *(("layers", "convolution:kernel=5"), ("layers", "sliding_window")),
    ]
    assert [case.group.of_blocks for case in cases] == [False, True, True, True]
    assert [case.family for case in cases] == ["full", "baseline", "baseline", "sparse"]
    assert [case.options for case in cases[1:3]] == ["{}", '{"kernel": 5}']
    assert [case.is_baseline for case in cases] == [False, True, False, False]


def test_blocks_are_selected_by_variant_overrides() -> None:
    assert _pairs(tiny_suites.plan(LAYERS, variants=["gru"])) == [("layers", "gru")]
    assert _pairs(tiny_suites.plan(LAYERS, variants=["convolution"])) == [("layers", "convolution:kernel=5")]
    both = _pairs(tiny_suites.plan(LAYERS, variants=["lstm", "linear"]))
    assert both == [("mechanisms", "linear"), ("layers", "lstm"), ("layers", "linear")]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{ kernel = 5 }", "{ kernl = 5 }", "unknown option 'kernl'; did you mean 'kernel'"),
        ('"sliding_window"', '"sliding_windw"', "unknown layer 'sliding_windw'; did you mean 'sliding_window'"),
        ('"sliding_window"', '"lstmm"', "unknown layer 'lstmm'; did you mean 'lstm"),
        ('name = "full"', 'name = "gru"', "unknown mechanism 'gru'"),
        ('baseline = "gru"', 'baseline = "grru"', "unknown baseline 'grru'; did you mean 'gru'"),
    ],
)
def test_invalid_blocks_are_refused_with_a_suggestion(old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiny_suites.plan(LAYERS.replace(old, new))
