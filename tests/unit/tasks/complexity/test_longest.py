"""Longest: the search finds what fits in a few tries, and a model with checkpoints can be longer."""

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


class Pretended:
    """Memory by a formula, and seconds by another; remembers what was tried."""

    def __init__(self, take: Callable[[int], float], seconds: Callable[[int], float] = lambda n: 1e-3) -> None:
        self.take, self.seconds, self.tried = take, seconds, []

    def bytes(self, length: int) -> int:
        self.tried.append(length)
        return int(self.take(length))

    def search(self, memory: int, most: int = MOST, most_s: float = 30.0) -> tuple[int, str | None]:
        return search(self.bytes, self.seconds, most, memory, most_s)


GROWTH = st.tuples(st.floats(0, 1e6), st.floats(1, 1e5), st.floats(0, 1e3))


@settings(max_examples=60)
@given(GROWTH, st.integers(20_000, 10**9))
def test_it_finds_the_longest_within_a_twentieth(growth: tuple[float, float, float], memory: int) -> None:
    base, linear, square = min(growth[0], memory / 2), *growth[1:]  # half are gradients of weights, at most
    pretended = Pretended(lambda n: base + linear * n + square * n * n)
    found, ended = pretended.search(memory)
    assert len(pretended.tried) == len(set(pretended.tried)) <= MAX_TRIES
    assert all(0 < n <= MOST for n in pretended.tried)
    lengths = range(LENGTH_STEP, MOST + 1, LENGTH_STEP)
    longest = LENGTH_STEP * bisect_right(lengths, memory, key=lambda n: int(base + linear * n + square * n * n))
    assert found <= longest
    assert found == 0 or found in pretended.tried
    assert found >= 0.95 * longest - LENGTH_STEP or pretended.take(found) >= 0.95 * memory
    if found == MOST:
        assert ended == "no more than 32,768 positions were tried"
    elif not found:
        assert (ended or "").endswith(" positions need more already")
    else:
        assert ended is None


@pytest.mark.parametrize("power", [1, 2])
def test_it_goes_straight_there_and_not_far_beyond(power: int) -> None:
    pretended = Pretended(lambda n: 1000 * n**power)
    found, _ = pretended.search(1000 * 5000**power)
    assert 4750 <= found <= 5000
    assert len(pretended.tried) <= 4
    assert max(pretended.tried) <= 5000  # more memory than it may take is not asked for


def test_plateaus_are_searched_by_halves() -> None:
    pretended = Pretended(lambda n: 10_000 * -(-n // 1000))
    found, ended = pretended.search(70_500)
    assert pretended.take(found) == 70_000
    assert ended is None
    assert len(pretended.tried) <= MAX_TRIES


def test_all_fits() -> None:
    pretended = Pretended(lambda n: n)
    assert pretended.search(10**9) == (MOST, "no more than 32,768 positions were tried")
    assert pretended.tried == [256, MOST]
    assert Pretended(lambda n: n).search(10**9, most=100) == (100, "no more than 100 positions were tried")


def test_nothing_fits() -> None:
    pretended = Pretended(lambda n: 10**9 + n)
    assert pretended.search(10**6) == (0, "16 positions need more already")
    assert len(pretended.tried) <= MAX_TRIES


def test_a_step_that_would_take_too_long_ends_it() -> None:
    pretended = Pretended(lambda n: n, lambda n: 1e-4 * n**2)
    found, ended = pretended.search(10**9, most_s=30)
    assert ended == "a longer step would take more than 30 s"
    assert 500 <= found <= 547  # of which a step takes 30 s
    assert max(pretended.seconds(n) for n in pretended.tried) <= 30


SUITE = """
title   = "trial"
measure = ["longest"]
rounds  = 2
memory  = "3MB"
layers  = [1, 4]
axes    = { seq_len = [512], heads = [2], head_dim = [8], threads = [1] }
variant = [{ name = "full", backend = "dense" }]
"""


def test_depth_and_checkpoints_are_groups() -> None:
    cells = [cell for cell, _ in group_cases(tiny_suites.plan(SUITE))]
    assert [cell.config.inputs for cell in cells] == [
        *("1 layer", "1 layer, checkpointed", "4 layers", "4 layers, checkpointed")
    ]
    assert len({case.key.partition("#")[0] for case in tiny_suites.plan(SUITE)}) == 4


def test_checkpoints_let_a_deep_model_be_longer() -> None:
    plain, checked = (
        measure_cases(members)[0].row for _, members in group_cases(tiny_suites.plan(SUITE, keys={"layers": 4}))
    )
    assert (plain.status, checked.status, plain.mode) == ("ok", "ok", "forward_backward")
    long, longer = (int(str(row.extra["longest"])) for row in (plain, checked))
    assert longer > 1.4 * long > 0
    assert (plain.seq_len, plain.extra["memory"], plain.extra["checkpointed"]) == (long, 3_000_000, False)
    for row in (plain, checked):
        assert 2e6 < (row.peak_memory_bytes or 0) <= 3e6
        assert row.extra["ended"] is None


def test_a_causal_place_hides_later_keys() -> None:
    """`linformer` cannot, and says so."""
    seen, hidden = (tiny_suites.plan(SUITE, variants=["linformer"], axes={"causal": [c]})[0] for c in (False, True))
    assert measure_step(seen, 16)[0] > 0
    with pytest.raises(Exception, match="causal"):
        measure_step(hidden, 16)


def test_more_memory_is_guessed_to_take_longer() -> None:
    best = Roofline(1e9, 1e9)
    small, large = (guess(tiny_suites.plan(SUITE, keys={"memory": m})[0], best) for m in ("10kB", "50kB"))
    assert small.call_s < large.call_s
    assert large.call_bytes == 100_000
