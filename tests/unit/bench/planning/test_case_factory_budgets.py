"""Budgets in a suite: options are fitted to each budget, and the baseline is planned once, without a budget."""

from __future__ import annotations

import pytest

import efficient_attn as ea
from efficient_attn.bench.planning.plan import Overrides, make_plan
from efficient_attn.bench.planning.suite import parse_suite
from efficient_attn.tasks import TABLE

SUITE = """
title = "t"
measure = ["forward"]
baseline = "full"
[axes]
seq_len = [512, 1024]
causal = [true]
budget = ["64", " 128 "]
[dims]
heads = 2
head_dim = 16
[[variant]]
name = "full"
[[variant]]
name = "sliding_window"
[[variant]]
name = "strided"
"""


def plan(text: str = SUITE, **overrides: object) -> list[tuple[int, str, str | None]]:
    cases = make_plan(parse_suite(text, "s", TABLE), Overrides(**overrides))  # pyright: ignore[reportArgumentType]
    return [(case.group.config.seq_len, case.variant, case.budget) for case in cases]


def test_variants_are_fitted_at_each_length_except_the_baseline() -> None:
    assert plan()[:5] == [
        (512, "full", None),
        (512, "sliding_window:window=63", "64"),
        (512, "sliding_window:window=127", "128"),
        (512, "strided:stride=55", "64"),
        (512, "strided:stride=124", "128"),
    ]
    assert (1024, "strided:stride=120", "128") in plan()
    assert len(plan(variants=["full", "sliding_window"], axes={"budget": ["32"], "seq_len": [512]})) == 2


def test_rows_have_their_budget_and_keys_without_one_are_unchanged() -> None:
    with_budget, without = (
        make_plan(parse_suite(text, "s", TABLE)) for text in (SUITE, SUITE.replace('budget = ["64", " 128 "]\n', ""))
    )
    assert with_budget[0].key == without[0].key
    assert with_budget[1].row().budget == "64"
    text = SUITE.replace('"sliding_window"', '"sliding_window:window=63"').replace("budget", "# ")
    same = parse_suite(text, "s", TABLE)
    assert make_plan(same)[1].key != with_budget[1].key


@pytest.mark.parametrize(
    ("variants", "budget", "message"),
    [
        (["linear"], "64", "no rule that fits it to a budget; leave linear out"),
        (["sliding_window:window=3"], "64", "'window' is given twice"),
        (["sliding_window|strided"], "64", "union"),
        (["strided"], "16", "more than 16 keys"),
        (["strided"], "64KiB", "stores 128 KiB after 512 positions"),
        (["linformer"], "64KiB", "no decode state"),
        (["sliding_window"], "few", "not a size"),
        (["sliding_window"], "N/513", "less than one key"),
    ],
)
def test_impossible_budgets_give_a_one_line_error(variants: list[str], budget: str, message: str) -> None:
    with pytest.raises(ea.UsageError, match=message) as error:
        plan(variants=variants, axes={"budget": [budget], "seq_len": [512]})
    assert "\n" not in str(error.value)
    assert "budget" in str(error.value)


def test_budgets_may_be_fractions_of_the_length() -> None:
    assert plan(variants=["sliding_window"], axes={"budget": ["N/8"]}) == [
        (512, "sliding_window:window=63", "N/8"),
        (1024, "sliding_window:window=127", "N/8"),
    ]


def test_a_budget_in_bytes_covers_all_heads() -> None:
    assert plan(variants=["sliding_window"], axes={"budget": ["64KiB"], "seq_len": [512]}) == [
        (512, "sliding_window:window=255", "64KiB")
    ]


@pytest.mark.parametrize("kind", ["positive", "relu", "hyperbolic", "trigonometric"])
def test_fitted_features_of_every_kind_have_a_state_of_the_budget(kind: str) -> None:
    cases = plan(variants=["full", f"performer:kind={kind}"], axes={"budget": ["128"], "seq_len": [2048]})
    (spec,) = {str(variant) for _, variant, budget in cases if budget}
    attn = ea.create(spec, dims=ea.Dims(heads=1, kv_heads=1, head_dim=16, value_dim=16, max_len=2048))
    assert 0.95 < ea.state_bytes(attn.init_state(1, 2048)) / (128 * 2 * 16 * 4) < 1.05
