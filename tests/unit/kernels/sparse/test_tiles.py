"""Tiles: `scatter_add` is the transpose of `fetch`, and masks and steps follow the plan."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from efficient_attn.kernels.sparse import tiles
from efficient_attn.kernels.sparse.tiles import Gather, Step, Tile, Tiling, TilingRule, View
from efficient_attn.patterns import Band, Geometry, Keys

CPU = torch.device("cpu")


@st.composite
def views(draw: st.DrawFn) -> tuple[View, int, int]:
    """A view, its number of windows, and a length that it fits in."""
    first, size, step = draw(st.integers(0, 4)), draw(st.integers(1, 14)), draw(st.integers(1, 4))
    # as in plans: windows that advance by whole steps, that interleave, or that are all the same
    advance = draw(st.sampled_from([0, *([1] if step > 1 else []), step, 3 * step, 5 * step]))
    count = draw(st.integers(1, step if advance == 1 and step > 1 else 6))
    return View(first, size, step, advance), count, first + (count - 1) * advance + (size - 1) * step + 1


@st.composite
def gathers(draw: st.DrawFn) -> tuple[Gather, int, int]:
    block, width, count = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    length, whole = draw(st.integers(4, 15)), draw(st.booleans())
    numbers = st.integers(0, length // block - 1) if whole else st.integers(-1, (length - 1) // block)
    rows = st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=count, max_size=count)
    return Gather(torch.tensor(draw(rows)), block, whole), count, length


@settings(max_examples=200, deadline=None)
@given(st.one_of(views(), gathers()), st.integers(0, 3), st.data())
def test_scatter_add_is_the_transpose_of_fetch(
    case: tuple[View | Gather, int, int], extra: int, data: st.DataObject
) -> None:
    keys, count, length = case
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first + 1, count))
    x = torch.randn(2, length + extra, 3, dtype=torch.float64)
    fetched = keys.fetch(x, first, last)
    assert fetched.shape == (2, last - first, keys.size, 3)
    part = torch.randn(fetched.shape, dtype=torch.float64)
    scattered = torch.zeros_like(x)
    keys.scatter_add(scattered, part, first, last)
    torch.testing.assert_close((fetched * part).sum(), (x * scattered).sum())


@settings(max_examples=100, deadline=None)
@given(st.one_of(views(), gathers()))
def test_fetch_returns_the_keys_at_the_positions(case: tuple[View | Gather, int, int]) -> None:
    keys, count, length = case
    x = torch.arange(length, dtype=torch.float64).view(1, -1, 1)
    positions = keys.positions(0, count, CPU)
    fetched = keys.fetch(x, 0, count)[0, :, :, 0]
    inside = (positions >= 0) & (positions < length)
    assert torch.equal(fetched[inside], positions[inside].double())


def test_fetched_views_share_memory_for_any_strides() -> None:
    x = torch.randn(2, 100, 3, 4)
    view = View(2, 20, 2, 1).fetch(x, 0, 2)
    assert view.shape == (2, 2, 20, 3, 4)
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(view[:, 1], x[:, 3:43:2])
    narrow = x.transpose(0, 1).contiguous().transpose(0, 1)[:, 10:]  # other strides, and an offset
    assert torch.equal(View(0, 5, 1, 5).fetch(narrow, 1, 3)[:, 1], narrow[:, 10:15])


def test_rule_excludes_pairs_of_earlier_facts() -> None:
    g = Geometry(6, 6, 0, True)
    i, j = torch.arange(6)[:, None], torch.arange(-1, 8)[None]
    counted = TilingRule(Keys(0, 3), (Band(0, 1),), g)(i, j)
    want = [[0 <= b < 3 and b < a - 1 for b in range(-1, 8)] for a in range(6)]
    assert counted.tolist() == want
    shifted = TilingRule(Band(0, 0), (), Geometry(2, 6, 4, False))(torch.arange(2)[:, None], torch.arange(6)[None])
    assert shifted.nonzero().tolist() == [[0, 4], [1, 5]]


def test_steps_cut_tiles_into_chunks(monkeypatch) -> None:
    monkeypatch.setattr(tiles, "ROWS_A_STEP", 12)
    monkeypatch.setattr(tiles, "KEYS_A_STEP", 10)
    viewing = Tile(7, View(2, 4, 1, 4), View(0, 5, 1, 4), None)
    wide = Tile(1, View(30, 40), View(0, 5), None)
    gathered = Tile(5, View(0, 4, 1, 4), Gather(torch.zeros(5, 2, dtype=torch.long), 2, True), None)
    steps = [(tile, first, last) for tile, first, last in Tiling((viewing, wide, gathered)).steps()]
    assert [s[1:] for s in steps] == [(0, 3), (3, 6), (6, 7), (0, 1), (0, 2), (2, 4), (4, 5)]


def test_columns_are_mapped_to_original_positions() -> None:
    part = Tiling((), torch.tensor([3, 4, 9]))
    tile = Tile(1, View(0, 2), View(1, 2), TilingRule(Keys(3, 5, 6), (), Geometry(12, 12, 0, True)))
    assert part.select_keys(torch.arange(12.0).view(1, 12, 1))[0, :, 0].tolist() == [3, 4, 9]
    assert part.positions(Step(tile, 0, 1), CPU).tolist() == [[4, 9]]
    late = Tile(1, View(4, 2), View(1, 2), tile.rule)
    assert part.allowed(Step(late, 0, 1), CPU).tolist() == [[[True, False], [True, False]]]  # pyright: ignore


def test_pairs_of_a_tiling_exclude_masked_pairs() -> None:
    g = Geometry(8, 8, 0, False)
    masked = Tile(2, View(0, 4, 1, 4), View(0, 4, 1, 4), TilingRule(Band(0, 0), (), g))
    shared = Tile(2, View(0, 4, 1, 4), View(0, 4, 1, 4), masked.rule, torch.eye(4).bool())
    plain = Tile(2, View(0, 4, 1, 4), View(0, 3), None)
    assert (masked.pairs, plain.pairs) == (32, 24)
    assert [Tiling((t,)).pairs() for t in (masked, shared, plain)] == [8, 8, 24]


def test_all_pairs_count_without_a_rule() -> None:
    tile = Tile(1, View(0, 2), View(0, 2), None)
    assert Tiling((tile,)).allowed(Step(tile, 0, 1), CPU) is None
