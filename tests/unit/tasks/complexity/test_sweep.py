"""Sweeps: sizes, limits, calls at each size, and verification against the reference implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tiny_suites
import torch
from flop_clock import FlopClock

from efficient_attn.bench.case import Case
from efficient_attn.bench.measuring.row_errors import InvalidResult
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
POINT = SweepPoint(length=8, width=8, heads=2, causal=False)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FlopClock:
    return FlopClock().install(monkeypatch)


def plan(variant: str = "full:backend=dense", layer: bool = False, **keys: Any) -> Case:
    cases = tiny_suites.plan(SUITE, variants=[variant], keys=keys)
    return next(case for case in cases if case.group.of_blocks == layer)


@pytest.mark.parametrize(
    ("along", "expected"),
    [
        ("length", [replace(POINT, length=n) for n in (8, 16, 32, 64)]),
        ("width", [replace(POINT, width=d) for d in (8, 16, 32)]),
        ("heads", [replace(POINT, heads=h) for h in (1, 2, 4, 8)]),
        ("causal", [POINT, replace(POINT, causal=True)]),
    ],
)
def test_only_the_given_axis_grows(along: str, expected: list[SweepPoint]) -> None:
    assert list_points(plan(along=along)) == expected


def test_formula_variables_include_kernel_width_and_mask() -> None:
    (point, *_) = list_points(plan("convolution:kernel=5", layer=True))
    assert replace(point, causal=True).variables == {"N": 8, "D": 8, "H": 2, "C": 2, "k": 5}


# -- calls -----------------------------------------------------------------------------------------------------------


def test_mechanisms_take_split_heads_and_layers_take_rows() -> None:
    mechanism, layer = SweepCall(plan(), POINT), SweepCall(plan("gru", layer=True), POINT)
    assert [x.shape for x in mechanism.inputs] == [(1, 2, 8, 4)] * 3
    assert [x.shape for x in layer.inputs] == [(1, 8, 8)]
    assert mechanism.forward().shape == (1, 2, 8, 4)
    assert layer.forward().shape == (1, 8, 8)


def test_later_keys_are_masked_at_causal_points() -> None:
    for layer in (False, True):
        case = plan("full", layer)
        bidirectional, masked = (SweepCall(case, replace(POINT, causal=causal)).forward() for causal in (False, True))
        assert not torch.allclose(bidirectional, masked)
        torch.testing.assert_close(bidirectional[..., -1, :], masked[..., -1, :])  # the last row sees all keys anyway


def test_training_calls_return_gradients_of_inputs_and_weights() -> None:
    for variant, layer in (("full", False), ("full", True), ("gru", True)):
        call = SweepCall(plan(variant, layer, training=True), POINT)
        gradients: Any = call.call()
        leaves = [*call.inputs, *call.module.parameters()]
        assert [x.shape for x in gradients] == [x.shape for x in leaves]
        forward = SweepCall(plan(variant, layer), POINT)
        assert (call.count_bytes() or 0) > (forward.count_bytes() or 0) > 0
        assert not SweepCall(plan(variant, layer), POINT).forward().requires_grad or layer


@pytest.mark.parametrize("layer", [False, True])
def test_wrong_outputs_fail_verification(layer: bool) -> None:
    with tiny_suites.isolated_registry():
        tiny_suites.register_modified("zz_right")
        tiny_suites.register_modified("zz_wrong", lambda out: out * 1.01)
        assert (SweepCall(plan("zz_right", layer), POINT).verify("float32") or 0) < 1e-5
        with pytest.raises(InvalidResult, match="against its dense reference, more than 1e-04"):
            SweepCall(plan("zz_wrong", layer), POINT).verify("float32")
        tiny_suites.register_modified("zz_nothing", lambda out: out * float("nan"))
        with pytest.raises(InvalidResult, match="relative error nan"):
            SweepCall(plan("zz_nothing", layer), POINT).verify("float32")


def test_a_layer_without_a_reference_is_not_verified() -> None:
    assert SweepCall(plan("gru", layer=True), POINT).verify("float32") is None


def test_memory_of_lstmn_is_linear() -> None:
    """In the number of rows: each of them once kept a whole autograd tape."""
    case = plan("lstmn", layer=True)
    counted = [SweepCall(case, replace(POINT, length=n)).count_bytes() or 0 for n in (32, 64, 128)]
    assert counted[2] - counted[1] == pytest.approx(2 * (counted[1] - counted[0]), rel=0.02)


# -- limits ----------------------------------------------------------------------------------------------------------


def test_without_a_limit_all_sizes_are_measured(clock: FlopClock) -> None:
    reports: list[int] = []
    sweep = measure_sweep(plan(), lambda: reports.append(1))
    assert (sweep.sizes, sweep.stop_reason) == ([8, 16, 32, 64], None)
    assert len(reports) == 4 + 2  # before each size, and after each round
    assert [point.seconds.value for point in sweep.results] == pytest.approx(
        [sweep.results[0].seconds.value * 4**i for i in range(4)]
    )


def test_sizes_expected_to_take_too_long_are_not_measured(clock: FlopClock) -> None:
    at_32 = measure_sweep(plan()).results[2].seconds.value
    clock.calls = 0
    sweep = measure_sweep(plan(most_s=2 * at_32))
    assert sweep.sizes == [8, 16, 32]
    assert sweep.stop_reason == f"a call would take about {4 * at_32:.2g} s at length 64"


def test_sizes_expected_to_exceed_the_memory_are_not_measured(clock: FlopClock) -> None:
    results = measure_sweep(plan()).results
    (point, memory) = results[2].point, results[2].bytes or 0
    sweep = measure_sweep(plan(most_bytes=int(1.2 * memory)))
    assert (sweep.results[-1].point, sweep.sizes) == (point, [8, 16, 32])
    assert (sweep.stop_reason or "").startswith("a call would take about ")
    assert (sweep.stop_reason or "").endswith("KiB at length 64")


def test_a_size_that_took_too_long_is_excluded(clock: FlopClock) -> None:
    clock.leaps = {32: 2.0}
    sweep = measure_sweep(plan())
    assert (sweep.sizes, sweep.stop_reason) == ([8, 16], "a call takes 2 s at length 32")


def test_exceeding_the_budget_is_an_error_only_below_two_sizes(clock: FlopClock) -> None:
    clock.leaps = {32: 20.0}
    sweep = measure_sweep(plan())
    assert (sweep.sizes, sweep.stop_reason) == ([8, 16], "at length 32 one call takes 20 s, the budget is 19 s")
    clock.leaps = {16: 20.0}
    with pytest.raises(TooSlow):
        measure_sweep(plan())


def test_two_sizes_are_always_measured(clock: FlopClock) -> None:
    sweep = measure_sweep(plan(most_s=1e-9, most_bytes=1))
    assert sweep.sizes == [8, 16]
    assert len(sweep.rounds) == 2


# -- estimated cost --------------------------------------------------------------------------------------------------


def test_estimated_cost_excludes_sizes_beyond_the_limit() -> None:
    roofline = Roofline(1e9, 1e9)
    case = plan("gru", layer=True)
    calls = [estimate_call_s(case, point, roofline) for point in list_points(case)]
    assert calls == sorted(calls)
    assert guess(plan("gru", layer=True, most_s=calls[1]), roofline).call_s < guess(case, roofline).call_s / 2
    long = replace(POINT, length=4096)
    assert estimate_call_s(plan(training=True), long, roofline) > 2 * estimate_call_s(plan(), long, roofline)
