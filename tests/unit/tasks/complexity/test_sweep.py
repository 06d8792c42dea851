"""Sweeps: which sizes they have, what ends them, what is called at each, and its check against the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny_suites
import torch
from flop_clock import FlopClock

from efficient_attn.bench.case import Case
from efficient_attn.bench.measuring.output_comparison import InvalidResult
from efficient_attn.instruments.roofline import Roofline
from efficient_attn.instruments.timing import TooSlow
from efficient_attn.tasks.complexity.complexity_task import guess
from efficient_attn.tasks.complexity.sweep import SweepCall, SweepPoint, estimate_call_s, list_points, measure_sweep

SUITE = """
title    = "trial"
measure  = ["complexity"]
rounds   = 2
max_rounds = 2
budget_s = 9
octaves  = 2
along    = ["length"]
length   = 8
width    = 8
axes     = { seq_len = [8, 16, 32, 64], heads = [2], head_dim = [4, 8, 16], threads = [1] }
variant  = [{ name = "full", backend = "dense" }]
block    = [{ name = "gru" }]
"""
SPOT = SweepPoint(length=8, width=8, heads=2, causal=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FlopClock:
    return FlopClock().install(monkeypatch)


def plan(variant: str = "full:backend=dense", layer: bool = False, **keys: Any) -> Case:
    cases = tiny_suites.plan(SUITE, variants=[variant], keys=keys)
    return next(case for case in cases if case.group.of_blocks == layer)


@pytest.mark.parametrize(
    ("along", "found"),
    [
        ("length", [replace(SPOT, length=n) for n in (8, 16, 32, 64)]),
        ("width", [replace(SPOT, width=d) for d in (8, 16, 32)]),
        ("heads", [replace(SPOT, heads=h) for h in (1, 2, 4, 8)]),
        ("causal", [SPOT, replace(SPOT, causal=True)]),
    ],
)
def test_one_axis_grows_and_no_other(along: str, found: list[SweepPoint]) -> None:
    assert list_points(plan(along=along)) == found


def test_formulas_know_a_convolutions_width_and_the_mask() -> None:
    (spot, *_) = list_points(plan("convolution:kernel=5", layer=True))
    assert replace(spot, causal=True).variables == {"N": 8, "D": 8, "H": 2, "C": 2, "k": 5}


# -- what is called --------------------------------------------------------------------------------------------------


def test_a_mechanism_gets_heads_and_a_layer_gets_rows() -> None:
    mechanism, layer = SweepCall(plan(), SPOT), SweepCall(plan("gru", layer=True), SPOT)
    assert [x.shape for x in mechanism.inputs] == [(1, 2, 8, 4)] * 3
    assert [x.shape for x in layer.inputs] == [(1, 8, 8)]
    assert mechanism.forward().shape == (1, 2, 8, 4)
    assert layer.forward().shape == (1, 8, 8)


def test_later_keys_are_hidden_where_the_spot_says_so() -> None:
    for layer in (False, True):
        case = plan("full", layer)
        seen, hidden = (SweepCall(case, replace(SPOT, causal=causal)).forward() for causal in (False, True))
        assert not torch.allclose(seen, hidden)
        torch.testing.assert_close(seen[..., -1, :], hidden[..., -1, :])  # the last row sees all keys anyway


def test_training_gives_gradients_of_inputs_and_weights() -> None:
    for variant, layer in (("full", False), ("full", True), ("gru", True)):
        subject = SweepCall(plan(variant, layer, training=True), SPOT)
        found: Any = subject.call()
        wanted = [*subject.inputs, *subject.module.parameters()]
        assert [x.shape for x in found] == [x.shape for x in wanted]
        more, less = subject.count_bytes() or 0, SweepCall(plan(variant, layer), SPOT).count_bytes() or 0
        assert more > less > 0
        assert not SweepCall(plan(variant, layer), SPOT).forward().requires_grad or layer


@pytest.mark.parametrize("layer", [False, True])
def test_what_is_not_the_oracles_is_refused(layer: bool) -> None:
    with tiny_suites.isolated_registry():
        tiny_suites.register_modified("zz_right")
        tiny_suites.register_modified("zz_wrong", lambda out: out * 1.01)
        assert (SweepCall(plan("zz_right", layer), SPOT).verify("float32") or 0) < 1e-5
        with pytest.raises(InvalidResult, match="against its dense reference, more than 1e-04"):
            SweepCall(plan("zz_wrong", layer), SPOT).verify("float32")
        tiny_suites.register_modified("zz_nothing", lambda out: out * float("nan"))
        with pytest.raises(InvalidResult, match="relative error nan"):
            SweepCall(plan("zz_nothing", layer), SPOT).verify("float32")


def test_a_baseline_has_no_oracle() -> None:
    assert SweepCall(plan("gru", layer=True), SPOT).verify("float32") is None


def test_memory_of_lstmn_is_linear() -> None:
    """Of its rows, each of which once kept the whole tape of its moment."""
    case = plan("lstmn", layer=True)
    counted = [SweepCall(case, replace(SPOT, length=n)).count_bytes() or 0 for n in (32, 64, 128)]
    assert counted[2] - counted[1] == pytest.approx(2 * (counted[1] - counted[0]), rel=0.02)


# -- what ends a sweep -----------------------------------------------------------------------------------------------


def test_without_a_limit_all_sizes_are_measured(clock: FlopClock) -> None:
    told: list[int] = []
    found = measure_sweep(plan(), lambda: told.append(1))
    assert (found.sizes, found.stop_reason) == ([8, 16, 32, 64], None)
    assert len(told) == 4 + 2  # before each size, and after each round
    assert [point.seconds.value for point in found.results] == pytest.approx(
        [found.results[0].seconds.value * 4**i for i in range(4)]
    )


def test_a_size_that_would_take_too_long_is_not_tried(clock: FlopClock) -> None:
    at_32 = measure_sweep(plan()).results[2].seconds.value
    clock.calls = 0
    found = measure_sweep(plan(most_s=2 * at_32))
    assert found.sizes == [8, 16, 32]
    assert found.stop_reason == f"a call would take about {4 * at_32:.2g} s at length 64"


def test_a_size_that_would_take_too_much_memory_is_not_tried(clock: FlopClock) -> None:
    whole = measure_sweep(plan()).results
    (spot, most) = whole[2].point, whole[2].bytes or 0
    found = measure_sweep(plan(most_bytes=int(1.2 * most)))
    assert (found.results[-1].point, found.sizes) == (spot, [8, 16, 32])
    assert (found.stop_reason or "").startswith("a call would take about ")
    assert (found.stop_reason or "").endswith("KiB at length 64")


def test_a_size_that_took_too_long_is_left_out(clock: FlopClock) -> None:
    clock.leaps = {32: 2.0}
    found = measure_sweep(plan())
    assert (found.sizes, found.stop_reason) == ([8, 16], "a call takes 2 s at length 32")


def test_a_size_that_took_far_too_long_ends_the_sweep_and_not_the_case(clock: FlopClock) -> None:
    clock.leaps = {32: 20.0}
    found = measure_sweep(plan())
    assert (found.sizes, found.stop_reason) == ([8, 16], "at length 32 one call takes 20 s, the budget is 19 s")
    clock.leaps = {16: 20.0}
    with pytest.raises(TooSlow):
        measure_sweep(plan())


def test_two_sizes_are_always_measured(clock: FlopClock) -> None:
    found = measure_sweep(plan(most_s=1e-9, most_bytes=1))
    assert found.sizes == [8, 16]
    assert len(found.rounds) == 2


# -- what it is said to cost -----------------------------------------------------------------------------------------


def test_what_is_not_allowed_costs_nothing() -> None:
    best = Roofline(1e9, 1e9)
    case = plan("gru", layer=True)
    calls = [estimate_call_s(case, spot, best) for spot in list_points(case)]
    assert calls == sorted(calls)
    assert guess(plan("gru", layer=True, most_s=calls[1]), best).call_s < guess(case, best).call_s / 2
    long = replace(SPOT, length=4096)
    assert estimate_call_s(plan(training=True), long, best) > 2 * estimate_call_s(plan(), long, best)
