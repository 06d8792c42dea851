"""Patterns as values: what they allow, and that the blocks which they name miss nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.errors import UsageError
from efficient_attn.patterns import Band, Fact, Geometry, Keys, Pattern, Where, as_pattern, sliding_window

bands = st.builds(
    lambda lo, width, step: Band(lo, lo + width, step), st.integers(-9, 9), st.integers(0, 9), st.integers(1, 5)
)


@st.composite
def columns(draw: st.DrawFn) -> Keys:
    first, width = draw(st.integers(0, 5)), draw(st.integers(1, 4))
    return Keys(first, first + width, draw(st.none() | st.integers(first + width, 12)))


wheres = st.integers(2, 5).map(lambda p: Where(lambda i, j: (i * 3 + j) % p == 0))
facts = st.one_of(bands, columns(), wheres)
patterns = st.lists(facts, min_size=1, max_size=3).map(lambda f: Pattern(tuple(f)))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    n, m = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    start = draw(st.sampled_from([m - n, 0, -3, m + 2]))
    return Geometry(n, m, start, draw(st.booleans()))


def rule(fact: Fact, i: int, j: int) -> bool:
    """The definitions again, in plain words."""
    if isinstance(fact, Band):
        return fact.lo <= i - j <= fact.hi and (i - j) % fact.step == 0
    if isinstance(fact, Keys):
        return fact.first <= (j if fact.period is None else j % fact.period) < fact.last
    assert isinstance(fact, Where)
    return bool(fact.fn(i, j))


@settings(max_examples=150, deadline=None)
@given(patterns, geometries())
def test_allows_is_the_definition_on_tensors_arrays_and_numbers(pattern: Pattern, g: Geometry) -> None:
    rows = range(g.start, g.start + g.n)
    want = [[any(rule(f, i, j) for f in pattern.facts) for j in range(g.m)] for i in rows]
    i, j = np.arange(g.n)[:, None] + g.start, np.arange(g.m)[None]
    assert np.broadcast_to(pattern.allows(i, j, g), (g.n, g.m)).tolist() == want
    tensor = pattern.allows(torch.from_numpy(i), torch.from_numpy(j), g)
    assert tensor.expand(g.n, g.m).tolist() == want
    assert bool(pattern.allows(g.start, 0, g)) == want[0][0]


@settings(max_examples=200, deadline=None)
@given(patterns, geometries(), st.integers(1, 9), st.integers(1, 9))
def test_blocks_hold_every_allowed_pair(pattern: Pattern, g: Geometry, size: int, rows: int) -> None:
    for first in range(g.start, g.start + g.n, rows):
        last = min(first + rows, g.start + g.n) - 1
        named = pattern.key_blocks(first, last, size, g)
        assert named == sorted(set(named))
        assert all(0 <= b * size < g.m for b in named)
        if g.causal:
            assert all(b * size <= last for b in named)
        for i in range(first, last + 1):
            for j in range(min(g.m, i + 1) if g.causal else g.m):
                if any(rule(f, i, j) for f in pattern.facts):
                    assert j // size in named


@settings(max_examples=100, deadline=None)
@given(patterns, st.integers(0, 60))
def test_reach_bounds_how_far_a_causal_query_looks(pattern: Pattern, i: int) -> None:
    seen = [j for j in range(i + 1) if any(rule(f, i, j) for f in pattern.facts)]
    if pattern.reach is not None and seen:
        assert i - min(seen) <= pattern.reach


def test_a_window_names_few_blocks() -> None:
    g = Geometry(1 << 20, 1 << 20, 0, False)
    assert len(sliding_window(64).key_blocks(1 << 19, (1 << 19) + 63, 64, g)) <= 4


def test_reach() -> None:
    assert Band(-3, 5).reach == 5
    assert Band(-9, -4).reach == 0
    assert Keys(0, 1).reach is None
    assert Where(lambda i, j: i == j).reach is None
    assert (Band(0, 3) | Band(0, 8)).reach == 8
    assert (Band(0, 3) | Keys(0, 4)).reach is None


def test_window_is_one_contiguous_band() -> None:
    assert sliding_window(3).window == Band(-3, 3)
    assert Pattern((Band(0, 8, 2),)).window is None
    assert (Band(0, 3) | Band(0, 8)).window is None
    assert Pattern((Keys(0, 1),)).window is None


def test_joining_keeps_all_facts_in_order() -> None:
    a, b, c = Band(0, 1), Keys(0, 2), Band(3, 4)
    assert (a | b | c).facts == ((a | b) | Pattern((c,))).facts == (a, b, c)
    assert (Pattern((a,)) | c).facts == (a, c)


def test_patterns_are_values() -> None:
    assert sliding_window(3) == sliding_window(3)
    assert hash(sliding_window(3)) == hash(sliding_window(3))
    assert sliding_window(3) != sliding_window(4)


def test_anything_with_the_three_parts_is_a_fact() -> None:
    class Diagonal:
        reach = 0

        def allows(self, i, j, g):
            return i == j

        def blocks(self, first, last, size, g):
            return range(first // size, last // size + 1)

    mine = Diagonal()
    assert as_pattern(mine).facts == (mine,)
    assert (Band(0, 1) | mine).facts[1] is mine


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Band(3, 2), "needs lo <= hi and step >= 1, got lo=3, hi=2, step=1"),
        (lambda: Band(0, 2, 0), "step=0"),
        (lambda: Keys(2, 2), "needs 0 <= first < last"),
        (lambda: Keys(-1, 2), "needs 0 <= first < last"),
        (lambda: Keys(0, 5, 4), "<= period, got 0, 5, 4"),
        (lambda: sliding_window(-1), "window must be 0 or more, not -1"),
        (lambda: sliding_window(True), "window must be 0 or more, not True"),
        (lambda: as_pattern("window"), "a pattern is made of facts joined by |, got 'window'"),
        (lambda: Band(0, 1) | 3, "a pattern is made of facts"),
    ],
)
def test_impossible_patterns_are_told(make, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("|", r"\|")):
        make()
