"""The design of calls: every level and pair that a mechanism supports is met, and each call is what its case says."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from efficient_attn.testing import CHECKS, Subject, run_check
from efficient_attn.testing.call_costs import is_affordable
from efficient_attn.testing.call_factors import DesignedCall
from efficient_attn.testing.checks import size_design
from efficient_attn.testing.checks.size_design import MAX_ELEMENTS_THOROUGH, draw_cases, list_coverage
from efficient_attn.testing.covering_design import iterate_pairs

SPECS = ("full", "gqa:kv_heads=2", "sliding_window:window=16", "linear", "linformer", "reformer")
(SIZES,) = (c for c in CHECKS if c.name == "sizes_and_pairs")


@pytest.mark.parametrize("spec", SPECS)
def test_all_drawn_calls_have_every_pair_that_a_call_can_have(spec: str) -> None:
    factors, cases = draw_cases(Subject(spec, thorough=True))
    met = {pair for case in cases for pair in iterate_pairs(case)}
    for name, levels in factors.levels.items():
        assert {case[name] for case in cases} == set(levels), name
    random = Random(7)
    for _ in range(3000):
        case = {name: random.choice(levels) for name, levels in factors.levels.items()}
        designed = DesignedCall(factors.options[case["options"]], case)
        if factors.allows(case) and is_affordable(designed, MAX_ELEMENTS_THOROUGH):
            assert met.issuperset(iterate_pairs(case)), set(iterate_pairs(case)) - met


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spec", SPECS[:-1])  # long references of reformer are left to --thorough
def test_calls_of_ten_seeds_have_every_level(spec: str) -> None:
    drawn = [draw_cases(Subject(spec, seed=seed)) for seed in range(10)]
    for name, levels in drawn[0][0].levels.items():
        missing = set(levels) - {case[name] for _, cases in drawn for case in cases}
        if name == "lengths":  # the longest are rarely affordable
            missing = {(n, m) for n, m in missing if n * m < 2048**2}
        assert not missing, (name, missing)
    assert drawn[0][1] != drawn[1][1]


@pytest.mark.parametrize("spec", ["full", "linear", "sliding_window", "gqa"])
def test_every_seed_draws_long_batches_and_nearly_all_levels(spec: str) -> None:
    for seed in range(3):
        factors, cases = draw_cases(Subject(spec, seed=seed))
        kinds = {kind for case in cases for kind in size_design._list_combinations(case)}
        assert {"long batch", "long padded batch", "long, grouped", "long, torch.float16", "many heads"} <= kinds
        levels = {(name, level) for name, values in factors.levels.items() for level in values}
        missing = levels - {pair for case in cases for pair in case.items()}
        assert {name for name, _ in missing} <= {"lengths"}  # some are too long for the budget
        assert len(missing) <= 2


def test_published_sizes_are_among_the_levels() -> None:
    levels = draw_cases(Subject("full"))[0].levels
    assert {128, 256} < set(levels["width"])
    assert {1, 3, 4, 8} == {heads // kv_heads for heads, kv_heads in levels["heads"]} - {2, 5}
    assert max(heads for heads, _ in levels["heads"]) == 40
    assert max(levels["batch"]) == 65
    assert {n for n, _ in levels["lengths"]} >= {1000, 1024, 2048, 4096}
    assert any(n < m for n, m in levels["lengths"])
    assert any(n > m for n, m in levels["lengths"])
    assert {"both lengths", "lengths that hide nothing", "one key_mask for all"} < set(levels["padding"])


def test_a_call_is_what_its_case_says() -> None:
    factors, cases = draw_cases(Subject("linear", thorough=True))
    for case in cases[:60]:
        designed = DesignedCall(factors.options[case["options"]], case)
        s, mask = designed.shape, designed.mask
        assert (s.n, s.m) == case["lengths"]
        assert (s.heads, s.kv_heads) == case["heads"]
        assert (mask.key_lengths is not None) == ("both" in case["padding"] or case["padding"] in HAS_KEY_LENGTHS)
        assert mask.causal is case["causal"]
        if case["padding"] == "one key_mask for all" and s.batch > 1:
            assert mask.key_mask is not None
            assert mask.key_mask.stride(0) == 0
        rows = [row for span in designed.spans for row in range(span.start, span.stop)]
        assert rows[0] == 0
        assert rows[-1] == s.n - 1
        assert rows == sorted(set(rows))


HAS_KEY_LENGTHS = ("key_lengths", "lengths that hide nothing")


def test_compared_rows_differ_between_seeds() -> None:
    case = dict(next(c for c in draw_cases(Subject("full", thorough=True))[1] if c["lengths"] == (4096, 4096)))
    spans = [DesignedCall(Subject("full", seed=seed), {**case, "batch": 4}).spans for seed in range(5)]
    assert len(spans[0]) > 1
    assert all(a != b for i, a in enumerate(spans) for b in spans[:i])


def test_coverage_counts_the_calls_that_were_compared() -> None:
    subject = Subject("linformer")
    assert run_check(SIZES, subject).status == "passed"
    pairs = {(a, b, c, d): count for a, b, c, d, count in list_coverage(subject)}
    assert sum(pairs.values()) == sum(len(list(iterate_pairs(case))) for case in subject.met) > 0
    assert any(count == 0 for count in pairs.values())  # which --thorough would meet


def test_calls_whose_reference_is_slow_or_large_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("sliding_window", seed=4)
    whole = Subject("sliding_window").attn.__class__.oracle
    total = len(draw_cases(subject)[1])

    def oracle(self: Any, q: Tensor, *others: Any, **inputs: Tensor) -> Tensor:
        if q.shape[0] > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 320000000 bytes.")
        return whole(self, q, *others, **inputs)

    monkeypatch.setattr(type(subject.attn), "oracle", oracle)
    outcome = run_check(SIZES, subject)
    assert outcome.status == "passed", outcome.reason
    left_out = total - len(subject.met)
    assert left_out > 0
    assert f"{left_out} of {total} drawn calls are left out: their reference is too slow or large" in outcome.reason
    monkeypatch.setattr(size_design, "MAX_REFERENCE_S", 0.0)
    assert f"{total} of {total} drawn calls are left out" in run_check(SIZES, subject).reason


def test_a_fast_form_without_memory_fails_and_no_trait_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("full")
    message = "DefaultCPUAllocator: can't allocate memory"

    def compute(*given: Any, **inputs: Tensor) -> Tensor:
        raise RuntimeError(message)

    monkeypatch.setattr(type(subject.attn), "compute", compute)
    outcome = run_check(SIZES, subject)
    assert outcome.status == "failed"
    assert message in outcome.reason
    assert "declare" not in outcome.advice


def test_a_tensor_in_another_memory_order_has_the_same_numbers() -> None:
    subject = Subject("full")
    factors, cases = draw_cases(subject)
    case = {**cases[0], "lengths": (17, 17), "batch": 2, "start": None, "gradient": "all"}
    results = []
    for layout in factors.levels["layout"]:
        designed = DesignedCall(subject, {**case, "layout": layout})
        attn = subject.make(designed.shape, dtype=case["dtype"])
        call = DesignedCall(subject, case).call
        results.append(designed.evaluate(call, attn, designed.run_whole))
    for result in results[1:]:
        for name, x in result.items():
            assert torch.allclose(x.double(), results[0][name].double(), rtol=1e-2, atol=1e-2), name


def test_other_options_are_compared_with_their_own_reference() -> None:
    factors, _ = draw_cases(Subject("sliding_window:window=16"))
    assert set(factors.options) == {"defaults", "sliding_window:window=3"}
    subject = replace(Subject("sliding_window:window=16"), seed=3)
    assert factors.options["sliding_window:window=3"].attn.spec != subject.attn.spec
