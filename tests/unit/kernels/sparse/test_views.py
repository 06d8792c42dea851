"""Tiles that are views: windows contain each allowed pair; columns, rows and own blocks contain each pair once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.kernels.sparse.views import make_windows, view_band, view_keys, view_own_blocks, view_queries
from efficient_attn.patterns import Band, Blocks, Fact, Geometry, Keys, Queries

CPU = torch.device("cpu")


def keys_of_rows(band: Band, g: Geometry) -> dict[int, set[int]]:
    """The keys of each row's window; a row in two windows is an error."""
    keys_by_row: dict[int, set[int]] = {}
    for count, queries, keys in view_band(band, g):
        both = queries.positions(0, count, CPU).tolist(), keys.positions(0, count, CPU).tolist()
        for rows, span in zip(*both, strict=True):
            for row in rows:
                assert row not in keys_by_row, f"row {row} is in two windows"
                keys_by_row[row] = set(span)
    return keys_by_row


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 300), st.integers(1, 300), st.sampled_from([None, 0, -30, 77]), st.integers(-60, 60),
    st.integers(0, 90), st.booleans(), st.sampled_from([1, 1, 2, 3, 16, 200]), st.sampled_from(["both", "lo", "hi"]),
)  # fmt: skip
def test_windows_contain_all_allowed_pairs(
    n: int, m: int, start: int | None, lo: int, width: int, causal: bool, step: int, bounds: str
) -> None:
    g = Geometry(n, m, m - n if start is None else start, causal)
    band = Band(None if bounds == "hi" else lo, None if bounds == "lo" else lo + width, step)
    keys_by_row = keys_of_rows(band, g)
    for row in range(n):
        i = g.start + row
        wanted = {j for j in range(min(m, i + 1) if causal else m) if band.allows(i, j, g)}
        assert wanted <= keys_by_row.get(row, set())
        assert all(0 <= j < m and (i - j) % step == 0 for j in keys_by_row.get(row, ()))
    assert all(0 <= row < n for row in keys_by_row)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("window", [0, 8, 128, 600])
def test_work_grows_linearly_with_length(window: int, step: int, causal: bool) -> None:
    def work(n: int) -> int:
        band = Band(-window * step, window * step, step)
        return sum(count * q.size * k.size for count, q, k in view_band(band, Geometry(n, n, 0, causal)))

    span = (window if causal else 2 * window) + 1
    assert work(1 << 17) / work(1 << 16) == pytest.approx(2, rel=0.05)
    assert work(1 << 16) <= (1 << 16) * (span + 132)


def test_inner_windows_are_one_tile() -> None:
    inner = max(make_windows(-16, 16, Geometry(4096, 4096, 0, False)), key=lambda w: w.times)
    assert inner.times * inner.rows > 4000
    assert len(make_windows(-16, 16, Geometry(4096, 4096, 0, False))) <= 4


@pytest.mark.parametrize(("step", "calls"), [(2, 8), (64, 4), (4096, 2)])
def test_bands_with_steps_need_few_tiles(step: int, calls: int) -> None:
    """Few subsequences get one tile each; many share one tile."""
    assert len(list(view_band(Band(-8 * step, 8 * step, step), Geometry(4096, 4096, 0, False)))) <= calls


def test_causal_windows_in_the_future_are_empty() -> None:
    assert not list(view_band(Band(-9, -2), Geometry(10, 10, 0, True)))


# -- columns, rows, own blocks -------------------------------------------------------------------------------------


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    n, m = draw(st.integers(1, 400)), draw(st.integers(1, 400))
    return Geometry(n, m, draw(st.sampled_from([m - n, 0, -33, m + 2])), draw(st.booleans()))


def count_pairs(fact: Fact, g: Geometry) -> torch.Tensor:
    """How often the views cover each pair, ``[N, M]``."""
    taken, views = None, iter(())
    if isinstance(fact, Keys):
        taken, views = view_keys(fact, g)
    elif isinstance(fact, Queries):
        views = view_queries(fact, g)
    elif isinstance(fact, Blocks):
        views = view_own_blocks(fact, g)
    counts = torch.zeros(g.n, g.m, dtype=torch.int32)
    for count, queries, keys in views:
        for rows, key_rows in zip(queries.positions(0, count, CPU), keys.positions(0, count, CPU), strict=True):
            columns = key_rows if taken is None else taken[key_rows]
            counts[rows[:, None], columns[None]] += 1
    return counts


facts = st.one_of(
    st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda x: Keys(x[0], sum(x))),
    st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(18, 150)).map(lambda x: Keys(x[0], x[0] + x[1], x[2])),
    st.integers(1, 500).map(Queries),
    st.sampled_from([1, 2, 7, 16, 33, 64, 100, 600]).map(Blocks),
)


@settings(max_examples=200, deadline=None)
@given(facts, geometries())
def test_views_cover_each_pair_of_the_fact_once(fact: Fact, g: Geometry) -> None:
    counts = count_pairs(fact, g)
    i, j = torch.arange(g.n)[:, None] + g.start, torch.arange(g.m)
    allowed = fact.allows(i, j, g).expand(g.n, g.m)
    allowed = allowed & (j <= i) if g.causal else allowed
    assert counts.max() <= 1
    assert bool((counts[allowed] == 1).all())


@pytest.mark.parametrize("size", [1, 8, 128])
def test_own_blocks_are_one_tile_or_two_halves_if_causal(size: int) -> None:
    views = list(view_own_blocks(Blocks(size), Geometry(4096, 4096, 0, False)))
    assert len(views) == 1
    assert views[0][0] * views[0][1].size == 4096
    halves = list(view_own_blocks(Blocks(128), Geometry(4096, 4096, 0, True)))
    assert [q.size for _, q, _ in halves] == [64, 64]


def test_separate_columns_are_gathered_once() -> None:
    taken, _ = view_keys(Keys(6, 8, 8), Geometry(64, 64, 0, False))
    assert taken is not None
    assert taken.tolist() == [x for b in range(0, 64, 8) for x in (b + 6, b + 7)]
    assert view_keys(Keys(0, 8), Geometry(64, 64, 0, False))[0] is None
