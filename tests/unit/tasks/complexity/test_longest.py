"""The longest trainable length: the search needs few tries, and checkpointing allows longer sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import pytest
import tiny_suites
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_measurement import measure_cases

from efficient_attn.bench.case import group_cases
from efficient_attn.instruments.roofline import Roofline
from efficient_attn.tasks.complexity.longest import LENGTH_STEP, MAX_TRIES, guess, measure_step, search

MOST = 32768


class FakeModel:
    """Memory and seconds as formulas of the length; records the lengths that were tried."""

    def __init__(self, take: Callable[[int], float], seconds: Callable[[int], float] = lambda n: 1e-3) -> None:
        self.take, self.seconds, self.tried = take, seconds, []

    def measure(self, length: int) -> tuple[int, float]:
        self.tried.append(length)
        return int(self.take(length)), self.seconds(length)

    def search(self, memory: int, most: int = MOST, most_s: float = 30.0) -> tuple[int, str | None]:
        return search(self.measure, most, memory, most_s)


GROWTH = st.tuples(st.floats(0, 1e6), st.floats(1, 1e5), st.floats(0, 1e3))


@settings(max_examples=60)
@given(GROWTH, st.integers(20_000, 10**9))
def test_search_finds_the_longest_length_within_5_percent(growth: tuple[float, float, float], memory: int) -> None:
    base, linear, square = min(growth[0], memory / 2), *growth[1:]  # gradients of weights: at most half of the memory
    model = FakeModel(lambda n: base + linear * n + square * n * n)
    length, reason = model.search(memory)
    assert len(model.tried) == len(set(model.tried)) <= MAX_TRIES
    assert all(0 < n <= MOST for n in model.tried)
    lengths = range(LENGTH_STEP, MOST + 1, LENGTH_STEP)
    longest = LENGTH_STEP * bisect_right(lengths, memory, key=lambda n: int(base + linear * n + square * n * n))
    assert length <= longest
    assert length == 0 or length in model.tried
    assert length >= 0.95 * longest - LENGTH_STEP or model.take(length) >= 0.95 * memory
    if length == MOST:
        assert reason == "no more than 32,768 positions were tried"
    elif not length:
        assert (reason or "").endswith(" positions need more already")
    else:
        assert reason is None


@pytest.mark.parametrize("power", [1, 2])
def test_polynomial_memory_needs_at_most_four_tries(power: int) -> None:
    model = FakeModel(lambda n: 1000 * n**power)
    length, _ = model.search(1000 * 5000**power)
    assert 4750 <= length <= 5000
    assert len(model.tried) <= 4
    assert max(model.tried) <= 5000  # no try needs more than the memory


def test_plateaus_are_searched_by_bisection() -> None:
    model = FakeModel(lambda n: 10_000 * -(-n // 1000))
    length, reason = model.search(70_500)
    assert model.take(length) == 70_000
    assert reason is None
    assert len(model.tried) <= MAX_TRIES


def test_search_stops_at_the_maximum_length_if_all_fits() -> None:
    model = FakeModel(lambda n: n)
    assert model.search(10**9) == (MOST, "no more than 32,768 positions were tried")
    assert model.tried == [256, MOST]
    assert FakeModel(lambda n: n).search(10**9, most=100) == (100, "no more than 100 positions were tried")


def test_search_returns_zero_if_nothing_fits() -> None:
    model = FakeModel(lambda n: 10**9 + n)
    assert model.search(10**6) == (0, "16 positions need more already")
    assert len(model.tried) <= MAX_TRIES


def test_search_ends_before_steps_that_take_too_long() -> None:
    model = FakeModel(lambda n: n, lambda n: 1e-4 * n**2)
    length, reason = model.search(10**9, most_s=30)
    assert reason == "a longer step would take more than 30 s"
    assert 500 <= length <= 547  # a step of 547 positions takes 30 s
    assert max(model.seconds(n) for n in model.tried) <= 30


SUITE = """
title   = "trial"
measure = ["longest"]
rounds  = 2
memory  = "3MB"
layers  = [1, 4]
axes    = { seq_len = [512], heads = [2], head_dim = [8], threads = [1] }
variant = [{ name = "full", backend = "dense" }]
"""


def test_each_depth_and_checkpointing_option_is_a_group() -> None:
    groups = [group for group, _ in group_cases(tiny_suites.plan(SUITE))]
    assert [group.config.inputs for group in groups] == [
        *("1 layer", "1 layer, checkpointed", "4 layers", "4 layers, checkpointed")
    ]
    assert len({case.key.partition("#")[0] for case in tiny_suites.plan(SUITE)}) == 4


def test_checkpointing_allows_longer_sequences_in_deep_models() -> None:
    plain, checkpointed = (
        measure_cases(members)[0].row for _, members in group_cases(tiny_suites.plan(SUITE, keys={"layers": 4}))
    )
    assert (plain.status, checkpointed.status, plain.mode) == ("ok", "ok", "forward_backward")
    long, longer = (int(str(row.extra["longest"])) for row in (plain, checkpointed))
    assert longer > 1.4 * long > 0
    assert (plain.seq_len, plain.extra["memory"], plain.extra["checkpointed"]) == (long, 3_000_000, False)
    for row in (plain, checkpointed):
        assert 2e6 < (row.peak_memory_bytes or 0) <= 3e6
        assert row.extra["ended"] is None


def test_causal_configurations_use_a_causal_mask() -> None:
    """`linformer` does not support causal masks, so its step fails."""
    bidirectional, causal = (
        tiny_suites.plan(SUITE, variants=["linformer"], axes={"causal": [c]})[0] for c in (False, True)
    )
    assert measure_step(bidirectional, 16)[0] > 0
    with pytest.raises(Exception, match="causal"):
        measure_step(causal, 16)


def test_estimated_cost_grows_with_memory() -> None:
    roofline = Roofline(1e9, 1e9)
    small, large = (guess(tiny_suites.plan(SUITE, keys={"memory": m})[0], roofline) for m in ("10kB", "50kB"))
    assert small.call_s < large.call_s
    assert large.call_bytes == 100_000
