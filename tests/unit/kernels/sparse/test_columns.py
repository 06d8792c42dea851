"""Tiles of columns, rows and own blocks: they reach every pair of their fact, once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.kernels.sparse.columns import view_keys, view_own_blocks, view_queries
from efficient_attn.patterns import Blocks, Fact, Geometry, Keys, Queries

CPU = torch.device("cpu")


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    n, m = draw(st.integers(1, 400)), draw(st.integers(1, 400))
    return Geometry(n, m, draw(st.sampled_from([m - n, 0, -33, m + 2])), draw(st.booleans()))


def looked_at(fact: Fact, g: Geometry) -> torch.Tensor:
    """How often each pair is looked at, ``[N, M]``."""
    taken, views = None, iter(())
    if isinstance(fact, Keys):
        taken, views = view_keys(fact, g)
    elif isinstance(fact, Queries):
        views = view_queries(fact, g)
    elif isinstance(fact, Blocks):
        views = view_own_blocks(fact, g)
    times = torch.zeros(g.n, g.m, dtype=torch.int32)
    for count, queries, keys in views:
        for rows, at in zip(queries.positions(0, count, CPU), keys.positions(0, count, CPU), strict=True):
            columns = at if taken is None else taken[at]
            times[rows[:, None], columns[None]] += 1
    return times


facts = st.one_of(
    st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda x: Keys(x[0], sum(x))),
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(18, 150)).map(lambda x: Keys(x[0], x[0] + x[1], x[2])),
    st.integers(1, 500).map(Queries),
    st.sampled_from([1, 2, 7, 16, 33, 64, 100, 600]).map(Blocks),
)


@settings(max_examples=200, deadline=None)
@given(facts, geometries())
def test_every_pair_of_the_fact_is_looked_at_once(fact: Fact, g: Geometry) -> None:
    times = looked_at(fact, g)
    i, j = torch.arange(g.n)[:, None] + g.start, torch.arange(g.m)
    allowed = fact.allows(i, j, g).expand(g.n, g.m)
    allowed = allowed & (j <= i) if g.causal else allowed
    assert times.max() <= 1
    assert bool((times[allowed] == 1).all())


@pytest.mark.parametrize("size", [1, 8, 128])
def test_own_blocks_are_one_tile_a_part(size: int) -> None:
    views = list(view_own_blocks(Blocks(size), Geometry(4096, 4096, 0, False)))
    assert len(views) == 1
    assert views[0][0] * views[0][1].size == 4096
    halves = list(view_own_blocks(Blocks(128), Geometry(4096, 4096, 0, True)))
    assert [q.size for _, q, _ in halves] == [64, 64]


def test_columns_that_are_apart_are_taken_together_once() -> None:
    taken, _ = view_keys(Keys(6, 8, 8), Geometry(64, 64, 0, False))
    assert taken is not None
    assert taken.tolist() == [x for b in range(0, 64, 8) for x in (b + 6, b + 7)]
    assert view_keys(Keys(0, 8), Geometry(64, 64, 0, False))[0] is None
