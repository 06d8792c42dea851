"""Patterns: allowed pairs, key blocks, reach, equality, and invalid arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drawn_patterns import bands, columns, queries
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn import patterns as classics
from efficient_attn.errors import UsageError
from efficient_attn.patterns import (
    Band,
    Blocks,
    Fact,
    Geometry,
    Keys,
    Pattern,
    Queries,
    Reach,
    Where,
    as_pattern,
    sliding_window,
)
from efficient_attn.patterns.draws import draw

wheres = st.integers(2, 5).map(lambda p: Where(lambda i, j: (i * 3 + j) % p == 0))
blocks = st.builds(Blocks, st.integers(1, 7), st.integers(0, 3), st.integers(0, 9))
facts = st.one_of(bands(), columns(), queries, blocks, wheres)
patterns = st.lists(facts, min_size=1, max_size=3).map(lambda f: Pattern(tuple(f)))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    n, m = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    start = draw(st.sampled_from([m - n, 0, -3, m + 2]))
    return Geometry(n, m, start, draw(st.booleans()))


def is_allowed(fact: Fact, i: int, j: int, g: Geometry) -> bool:
    """The definition of each fact for one pair."""
    if isinstance(fact, Band):
        above = fact.lo is None or fact.lo <= i - j
        return above and (fact.hi is None or i - j <= fact.hi) and (i - j) % fact.step == 0
    if isinstance(fact, Keys):
        return fact.first <= (j if fact.period is None else j % fact.period) < fact.last
    if isinstance(fact, Queries):
        return 0 <= i < fact.last
    if isinstance(fact, Blocks):
        a, b = i // fact.size, j // fact.size
        return i >= 0 and (a == b or b in draw(fact.seed, a, a + 1 if g.causal else -(-g.m // fact.size), fact.count))
    assert isinstance(fact, Where)
    return bool(fact.fn(i, j))


@settings(max_examples=150, deadline=None)
@given(patterns, geometries())
def test_allows_equals_the_definition_on_tensors_arrays_and_numbers(pattern: Pattern, g: Geometry) -> None:
    rows = range(g.start, g.start + g.n)
    want = [[any(is_allowed(f, i, j, g) for f in pattern.facts) for j in range(g.m)] for i in rows]
    i, j = np.arange(g.n)[:, None] + g.start, np.arange(g.m)[None]
    assert np.broadcast_to(pattern.allows(i, j, g), (g.n, g.m)).tolist() == want
    tensor = pattern.allows(torch.from_numpy(i), torch.from_numpy(j), g)
    assert tensor.expand(g.n, g.m).tolist() == want
    assert bool(pattern.allows(g.start, 0, g)) == want[0][0]


@settings(max_examples=200, deadline=None)
@given(patterns, geometries(), st.integers(1, 9), st.integers(1, 9))
def test_key_blocks_contain_all_allowed_pairs(pattern: Pattern, g: Geometry, size: int, rows: int) -> None:
    for first in range(g.start, g.start + g.n, rows):
        last = min(first + rows, g.start + g.n) - 1
        key_blocks = pattern.key_blocks(first, last, size, g)
        assert key_blocks == sorted(set(key_blocks))
        assert all(0 <= b * size < g.m for b in key_blocks)
        if g.causal:
            assert all(b * size <= last for b in key_blocks)
        for i in range(first, last + 1):
            for j in range(min(g.m, i + 1) if g.causal else g.m):
                if any(is_allowed(f, i, j, g) for f in pattern.facts):
                    assert j // size in key_blocks


@settings(max_examples=100, deadline=None)
@given(patterns, st.integers(0, 60))
def test_reach_bounds_the_keys_of_causal_queries(pattern: Pattern, i: int) -> None:
    g = Geometry(i + 1, i + 1, 0, True)
    seen = [j for j in range(i + 1) if any(is_allowed(f, i, j, g) for f in pattern.facts)]
    if pattern.reach is not None:
        assert all(j < pattern.reach.prefix or i - j <= pattern.reach.back for j in seen)


def test_a_window_needs_few_key_blocks() -> None:
    g = Geometry(1 << 20, 1 << 20, 0, False)
    assert len(sliding_window(64).key_blocks(1 << 19, (1 << 19) + 63, 64, g)) <= 4


def test_reach_of_each_fact() -> None:
    assert Band(-3, 5).reach == Reach(5)
    assert Band(-9, -4).reach == Reach(0)
    assert Band(0, None).reach is None
    assert Keys(2, 4).reach == Reach(0, 4)
    assert Keys(0, 1, 7).reach is None
    assert Queries(3).reach == Reach(0, 3)
    assert Blocks(8).reach is None
    assert Where(lambda i, j: i == j).reach is None
    assert (Band(0, 3) | Band(0, 8)).reach == Reach(8)
    assert (Band(0, 3) | Keys(0, 4) | Queries(2)).reach == Reach(3, 4)


@settings(max_examples=40, deadline=None)
@given(geometries(), st.integers(1, 6), st.integers(1, 6), st.data())
def test_classic_patterns_equal_their_definitions(g: Geometry, a: int, b: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(1, b))
    definitions = {
        classics.sliding_window(a): lambda i, j: abs(i - j) <= a,
        classics.dilated_window(a, b): lambda i, j: abs(i - j) <= a * b and (i - j) % b == 0,
        classics.global_tokens(a): lambda i, j: 0 <= i < a or j < a or i == j,
        classics.strided(b): lambda i, j: abs(i - j) < b or (i - j) % b == 0,
        classics.fixed(b, c): lambda i, j: (i >= 0 and i // b == j // b) or j % b >= b - c,
        classics.sinks(a): lambda i, j: j < a,
    }
    for pattern, definition in definitions.items():
        for i in range(g.start, g.start + g.n):
            for j in range(g.m):
                assert bool(pattern.allows(i, j, g)) == definition(i, j), (pattern, i, j)


def test_random_blocks_are_distinct_and_depend_on_seed_and_block() -> None:
    g, longer = Geometry(400, 400, 0, True), Geometry(900, 900, 0, True)
    fact = Blocks(10, 3, seed=5)
    for a in range(40):
        choices = [b for b in fact.draws(a, g) if b >= 0]
        assert len(set(choices)) == len(choices) == min(3, a + 1)
        assert all(0 <= b <= a for b in choices)
        assert fact.draws(a, g) == fact.draws(a, longer)  # causal: a prefix stays a prefix
    everywhere = Geometry(400, 400, 0, False)
    assert any(b > a for a in range(40) for b in fact.draws(a, everywhere))
    other = Blocks(10, 3, seed=6)
    assert [fact.draws(a, g) for a in range(40)] != [other.draws(a, g) for a in range(40)]


def test_unions_keep_all_facts_in_order() -> None:
    a, b, c = Band(0, 1), Keys(0, 2), Band(3, 4)
    assert (a | b | c).facts == ((a | b) | Pattern((c,))).facts == (a, b, c)
    assert (Pattern((a,)) | c).facts == (a, c)


def test_equality_and_hash_of_patterns_compare_values() -> None:
    assert sliding_window(3) == sliding_window(3)
    assert hash(sliding_window(3)) == hash(sliding_window(3))
    assert sliding_window(3) != sliding_window(4)


def test_objects_with_reach_allows_and_blocks_are_facts() -> None:
    class Diagonal:
        reach = 0

        def allows(self, i, j, g):
            return i == j

        def blocks(self, first, last, size, g):
            return range(first // size, last // size + 1)

    fact = Diagonal()
    assert as_pattern(fact).facts == (fact,)
    assert (Band(0, 1) | fact).facts[1] is fact


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Band(3, 2), "needs lo <= hi and step >= 1, got lo=3, hi=2, step=1"),
        (lambda: Band(0, 2, 0), "step=0"),
        (lambda: Keys(2, 2), "needs 0 <= first < last"),
        (lambda: Keys(-1, 2), "needs 0 <= first < last"),
        (lambda: Keys(0, 5, 4), "<= period, got 0, 5, 4"),
        (lambda: Queries(0), "needs last >= 1, got 0"),
        (lambda: Blocks(0), "needs size >= 1 and count >= 0, got 0 and 0"),
        (lambda: Blocks(4, -1), "got 4 and -1"),
        (lambda: classics.dilated_window(3, 0), "dilation must be 1 or more, not 0"),
        (lambda: classics.global_tokens(-1), "n_global must be 0 or more"),
        (lambda: classics.random_blocks(1, 0), "block_size must be 1 or more"),
        (lambda: classics.strided(0), "stride must be 1 or more"),
        (lambda: classics.fixed(8, 9), "summary must be at most stride, got 9 and 8"),
        (lambda: classics.sinks(0), "n_sink must be 1 or more"),
        (lambda: sliding_window(-1), "window must be 0 or more, not -1"),
        (lambda: sliding_window(True), "window must be 0 or more, not True"),
        (lambda: as_pattern("window"), "a pattern consists of facts joined by |, got 'window'"),
        (lambda: Band(0, 1) | 3, "a pattern consists of facts"),
    ],
)
def test_invalid_patterns_are_reported(make, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("|", r"\|")):
        make()
