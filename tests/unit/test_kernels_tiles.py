"""Tiles: fetching keys and giving gradients back are each other's transpose; the job's masks are the pattern's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import efficient_attn as ea
from efficient_attn.families import sparse
from efficient_attn.kernels import tiles
from efficient_attn.kernels.tiles import Job, Tile, softmax_over_tiles

CPU = torch.device("cpu")


@st.composite
def view_tiles(draw: st.DrawFn) -> tuple[Tile, int]:
    rows, count, span = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(1, 14))
    col = draw(st.integers(0, 4))
    length = col + (count - 1) * rows + span + draw(st.integers(0, 3))
    return Tile(draw(st.integers(0, 3)), rows, count, span, col), length


@st.composite
def gather_tiles(draw: st.DrawFn) -> tuple[Tile, int]:
    size, width, count = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    length = draw(st.integers(1, 15))
    numbers = st.integers(-1, (length - 1) // size)
    table = torch.tensor(
        draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=count, max_size=count))
    )
    return Tile(0, draw(st.integers(1, 4)), count, width * size, blocks=table, block=size), length


@settings(max_examples=150, deadline=None)
@given(st.one_of(view_tiles(), gather_tiles()), st.data())
def test_giving_back_is_the_transpose_of_fetching(case: tuple[Tile, int], data: st.DataObject) -> None:
    tile, length = case
    first = data.draw(st.integers(0, tile.count - 1))
    last = data.draw(st.integers(first + 1, tile.count))
    x = torch.randn(2, length, 3, dtype=torch.float64)
    fetched = tile.fetch(x, first, last)
    assert fetched.shape == (2, last - first, tile.span, 3)
    part = torch.randn(fetched.shape, dtype=torch.float64)
    back = torch.zeros_like(x)
    tile.give_back(back, part, first, last)
    torch.testing.assert_close((fetched * part).sum(), (x * back).sum())


@settings(max_examples=100, deadline=None)
@given(st.one_of(view_tiles(), gather_tiles()))
def test_fetched_keys_are_those_that_the_tile_names(case: tuple[Tile, int]) -> None:
    tile, length = case
    x = torch.arange(length, dtype=torch.float64).view(1, -1, 1)
    keys = tile.keys_of(0, tile.count, CPU)
    fetched = tile.fetch(x, 0, tile.count)[0, :, :, 0]
    inside = (keys >= 0) & (keys < length)
    assert torch.equal(fetched[inside], keys[inside].double())


def test_view_tiles_copy_nothing() -> None:
    x = torch.randn(2, 100, 4)
    assert Tile(0, 8, 10, 20).fetch(x, 0, 10).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_queries_are_consecutive() -> None:
    assert Tile(3, 2, 3, 5).queries_of(1, 3, CPU).tolist() == [[5, 6], [7, 8]]


def _everything(rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return (rows >= 0) & (keys >= 0)


def test_steps_cut_tiles_into_chunks_and_fill_every_row_once(monkeypatch) -> None:
    monkeypatch.setattr(tiles, "VIEW_CHUNK", 3)
    job = Job((Tile(2, 4, 7, 5), Tile(30, 2, 1, 5)), _everything, None, group=2, scale=1.0)
    steps = [(first, last, rows) for _, first, last, rows in job.steps()]
    assert [s[:2] for s in steps] == [(0, 3), (3, 6), (6, 7), (0, 1)]
    filled = [r for s in steps for r in range(s[2].start, s[2].stop)]
    assert filled == [*range(4, 60), *range(60, 64)]


def test_masks_hold_padding_holes_and_groups() -> None:
    valid = torch.tensor([[True, True, False, True], [True, True, True, True]])
    table = torch.tensor([[0, -1]])
    job = Job((Tile(0, 1, 1, 4, blocks=table, block=2),), _everything, valid, group=3, scale=1.0)
    mask = job.mask(job.tiles[0], 0, 1, 4, torch.zeros(1))
    assert mask.shape == (4, 1, 3, 4)
    assert (mask == 0)[:, 0, 0].int().tolist() == [[1, 1, 0, 0]] * 4
    apart = torch.tensor([[False, True], [True, False]])
    job = Job((Tile(0, 1, 1, 2),), _everything, apart, group=1, scale=1.0)
    mask = job.mask(job.tiles[0], 0, 1, 4, torch.zeros(1))
    assert (mask == 0)[:, 0, 0].int().tolist() == [[0, 1], [0, 1], [1, 0], [1, 0]]  # a batch row's heads are adjacent
    job = Job((Tile(0, 1, 1, 4),), _everything, valid, group=1, scale=1.0)
    assert (job.mask(job.tiles[0], 0, 1, 2, torch.zeros(1)) == 0)[:, 0, 0].int().tolist() == [[1, 1, 0, 1], [1] * 4]


def test_rows_in_no_tile_are_zero_and_have_no_gradient() -> None:
    q, k = torch.randn(1, 6, 8, requires_grad=True), torch.randn(1, 6, 8, requires_grad=True)
    out = softmax_over_tiles(q, k, k, Job((Tile(2, 3, 1, 6),), _everything, None, 1, 1.0))
    assert not out[:, [0, 1, 5]].any()
    assert out[:, 2:5].all()
    out.sum().backward()
    assert q.grad is not None
    assert not q.grad[:, [0, 1, 5]].any()


def test_memory_is_the_inputs_and_a_number_a_row() -> None:
    q, k = (torch.randn(1, 256, 8, requires_grad=True) for _ in range(2))
    out = softmax_over_tiles(q, k, k, Job((Tile(0, 32, 8, 32),), _everything, None, 1, 1.0))
    saved = [x for x in out.grad_fn.saved_tensors if x is not q and x is not k]  # pyright: ignore
    assert sum(x.numel() for x in saved) <= 256 * 8 * 3 + 256


@pytest.mark.parametrize("spec", ["sliding_window:window=5", "sliding_window:window=5:backend=blocks"])
@pytest.mark.parametrize("padded", [False, True])
def test_other_devices_path_gives_the_same_output_and_gradient(spec: str, padded: bool, monkeypatch) -> None:
    attn = ea.create(spec)
    q = torch.randn(2, 4, 90, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 2, 90, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = ea.Mask(causal=True, key_lengths=torch.tensor([90, 0]) if padded else None)

    def answer() -> tuple[torch.Tensor, ...]:
        out = attn(q, k, v, mask)
        return out, *torch.autograd.grad((out * out.detach().cos()).sum(), (q, k, v))

    here = answer()
    monkeypatch.setattr(sparse, "softmax_over_tiles", tiles.through_sdpa)
    for one, other in zip(here, answer(), strict=True):
        torch.testing.assert_close(one, other)
