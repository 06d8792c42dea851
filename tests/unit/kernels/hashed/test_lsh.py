"""Hashing, sorting and tiles, compared with expected values in tiny cases and with a Python loop in others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.hashed import chunk_tiles as lsh_tiles
from efficient_attn.kernels.hashed import lsh
from efficient_attn.kernels.hashed import rounds as lsh_rounds
from efficient_attn.kernels.hashed.chunk_tiles import LAST_POSITION, cut_tiles, key_windows, make_layout
from efficient_attn.kernels.hashed.lsh import (
    Rounds,
    choose_hash_bits,
    count_directions,
    draw_rotations,
    find_buckets,
    sort_rounds,
)
from efficient_attn.kernels.hashed.rounds import inverse_norms, softmax_over_rounds
from efficient_attn.kernels.softmax import merge


def rounds_of(orders: list[list[list[int]]], size: int, lengths: list[int] | None = None) -> Rounds:
    """Rounds whose sorted orders ``[rounds][rows][N]`` are given."""
    order = torch.tensor(orders, dtype=torch.int32)
    chunk = order.long().argsort(-1).int() // size
    return Rounds(order, chunk, size, None if lengths is None else torch.tensor(lengths, dtype=torch.int32))


def draw_rounds(rounds: int, rows: int, n: int, size: int, lengths: list[int] | None = None) -> Rounds:
    """Rounds in random orders; padding, at the end of a row, is last in each."""
    generator = torch.Generator().manual_seed(0)
    real = lengths or [n] * rows
    return rounds_of(
        [[[*torch.randperm(m, generator=generator).tolist(), *range(m, n)] for m in real] for _ in range(rounds)],
        size,
        lengths,
    )


def reference_pairs(rounds: Rounds, causal: bool) -> Tensor:
    """The visible pairs over all rounds (P_i of the paper), by a loop in Python."""
    count, rows, n = rounds.order.shape
    visible = torch.zeros(rows, n, n, dtype=torch.bool)
    for row in range(rows):
        real = n if rounds.lengths is None else int(rounds.lengths[row])
        valid = rounds.order[0, row].tolist()[:real]
        slots = [{j: s for s, j in enumerate(rounds.order[r, row].tolist())} for r in range(count)]
        for i in valid:
            for j in valid:
                distances = [p[i] // rounds.size - p[j] // rounds.size for p in slots]
                visible[row, i, j] = i != j and any(a in (0, 1) for a in distances) and (j <= i or not causal)
            visible[row, i, i] = not visible[row, i].any()
    return visible


# -- hashing ---------------------------------------------------------------------------------------------------------


def test_bucket_is_the_nearest_signed_direction() -> None:
    rotations = torch.zeros(1, lsh.MAX_POLYTOPES, 1 << (lsh.BITS_PER_POLYTOPE - 1), 2)
    rotations[0, 0, :2] = torch.eye(2)
    x = torch.tensor([[3.0, 1], [1, 3], [-3, 1], [1, -3], [0, 0]])[None, None]
    assert find_buckets(x, rotations, 1, [4]).flatten().tolist() == [0, 1, 2, 3, 0]  # 4 positions, 4 buckets
    assert find_buckets(x, rotations, 4, [8]).flatten().tolist() == [0, 0, 1, 0, 0]  # 2 buckets: first direction only


def test_more_than_64_buckets_combine_two_hashes() -> None:
    rotations, x = draw_rotations(3, 8, 0), torch.randn(1, 2, 50, 8)
    combined = find_buckets(x, rotations, 1, [200])  # 256
    first, second = find_buckets(x, rotations, 1, [64]), find_buckets(x, rotations[:, 1:], 1, [4])
    assert torch.equal(combined, first * 4 + second)
    assert combined.max() < 256
    assert combined.max() > 64


@pytest.mark.parametrize(
    ("length", "size", "bits"),
    [(0, 64, 1), (1, 64, 1), (128, 64, 1), (129, 64, 2), (256, 64, 2), (257, 64, 3), (4096, 64, 6), (1 << 30, 1, 24)],
)
def test_hash_bits_are_chosen_by_length_and_bucket_size(length: int, size: int, bits: int) -> None:
    assert choose_hash_bits(length, size) == bits


def test_number_of_directions_grows_with_log_of_buckets() -> None:
    assert [count_directions(b) for b in (1, 2, 6, 7, 12)] == [[1], [2], [32], [32, 1], [32, 32]]
    for bits in range(1, 25):
        assert math.prod(2 * d for d in count_directions(bits)) == 1 << bits
        assert sum(count_directions(bits)) <= 32 * math.ceil(bits / 6)


def test_rotations_depend_on_the_seed_only() -> None:
    state = torch.get_rng_state()
    assert torch.equal(draw_rotations(2, 4, 7), draw_rotations(2, 4, 7))
    assert not torch.equal(draw_rotations(2, 4, 7), draw_rotations(2, 4, 8))
    assert torch.equal(state, torch.get_rng_state())


def test_half_precision_is_hashed_in_float32() -> None:
    x, rotations = torch.randn(1, 2, 300, 16).bfloat16(), draw_rotations(2, 16, 0)
    assert torch.equal(find_buckets(x, rotations, 4, [300]), find_buckets(x.float(), rotations, 4, [300]))


# -- sorting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [9, 5000])  # torch sorts long sequences with another algorithm
def test_positions_are_sorted_by_bucket_with_padding_last(n: int) -> None:
    x, rotations = torch.randn(2, 3, n, 8), draw_rotations(2, 8, 0)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, ::3] = False
    lengths = valid.sum(1).tolist()
    got = sort_rounds(x, rotations, 4, valid)
    codes = find_buckets(x, rotations, 4, lengths).view(2, 6, n).tolist()
    for r in range(2):
        for row in range(6):
            real = valid[row // 3].tolist()
            want = sorted(range(n), key=lambda j, c=codes[r][row], real=real: (not real[j], c[j] if real[j] else 0, j))
            assert got.order[r, row].tolist() == want
            assert got.chunk[r, row].tolist() == [s // 4 for s in torch.tensor(want).argsort().tolist()]
    assert got.lengths is not None
    assert got.lengths.tolist() == [lengths[0]] * 3 + [lengths[1]] * 3


def test_padded_rows_are_sorted_as_without_padding() -> None:
    rotations, lengths = draw_rotations(2, 8, 0), [700, 40, 40, 130, 0]  # with buckets of 4: four numbers of bits
    x = torch.randn(5, 2, 700, 8, dtype=torch.float64)
    together = sort_rounds(x, rotations, 4, torch.arange(700) < torch.tensor(lengths)[:, None])
    assert len({choose_hash_bits(length, 4) for length in lengths}) == 4
    for b, length in enumerate(lengths[:-1]):
        unpadded = sort_rounds(x[b : b + 1, :, :length], rotations, 4)
        assert torch.equal(together.order[:, 2 * b : 2 * b + 2, :length], unpadded.order)
        assert torch.equal(together.order[:, 2 * b, length:], torch.arange(length, 700).expand(2, -1))


# -- visible pairs ----------------------------------------------------------------------------------------------------


def test_query_sees_its_chunk_and_the_previous_one() -> None:
    visible = rounds_of([[[4, 0, 2, 1, 5, 3]]], 2).visible_pairs(False)[0]
    assert [row.nonzero()[:, 0].tolist() for row in visible] == [[4], [0, 2, 4], [0, 1, 4], [1, 2, 5], [0], [1, 2, 3]]
    causal = rounds_of([[[4, 0, 2, 1, 5, 3]]], 2).visible_pairs(True)[0]
    assert [row.nonzero()[:, 0].tolist() for row in causal] == [[0], [0], [0, 1], [1, 2], [0], [1, 2, 3]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rounds", "size"), [(1, 3), (3, 3), (4, 1), (2, 17), (2, 400)])
def test_visible_pairs_equal_reference(rounds: int, size: int, causal: bool) -> None:
    for lengths in (None, [17, 11, 0]):
        sorted_rounds = draw_rounds(rounds, 3, 17, size, lengths)
        assert torch.equal(sorted_rounds.visible_pairs(causal), reference_pairs(sorted_rounds, causal))


def test_query_sees_itself_only_if_it_sees_no_other_key() -> None:
    visible = draw_rounds(2, 2, 40, 4).visible_pairs(True)
    self_visible = visible.diagonal(dim1=1, dim2=2)
    assert torch.equal(self_visible, visible.sum(-1) == (self_visible.int()))  # queries that see themselves see one key
    assert self_visible[:, 0].all()
    assert 2 < self_visible.sum() < 40


# -- tiles -------------------------------------------------------------------------------------------------------------


def count_pairs(rounds: Rounds, causal: bool) -> Tensor:
    """How often the tiles count each pair ``[R, N, N]``."""
    _, rows, n = rounds.order.shape
    counts = torch.zeros(rows * n, rows * n)
    for layout, slab in cut_tiles(rounds, causal):
        mask, blind = layout.mask(slab, torch.float32)
        assert torch.equal(blind, (mask < 0).all(-1))
        assert set(mask.unique().tolist()) <= {0.0, -math.inf}
        positions = layout.keys(slab)
        keys = key_windows(positions, layout.size)[:, :, None].expand(mask.shape)
        queries = layout.queries(positions, slab)[..., None].expand(mask.shape)
        real = layout.trim(mask == 0, slab)
        indices = [layout.trim(x, slab)[real] for x in (queries, keys)]
        counts.index_put_(tuple(indices), torch.ones(len(indices[0])), accumulate=True)
    blocks = counts.view(rows, n, rows, n)
    assert blocks.sum() == blocks.diagonal(dim1=0, dim2=2).sum()  # no pairs across rows
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("slab", [1, 12, 1024])
@pytest.mark.parametrize(("rounds", "size"), [(1, 3), (4, 3), (3, 8), (2, 23)])
def test_tiles_count_each_visible_pair_once(rounds: int, size: int, slab: int, causal: bool, monkeypatch) -> None:
    """With slabs of parts of a chunk, some chunks, or several rows."""
    monkeypatch.setattr(lsh_tiles, "ROWS_A_SLAB", slab)
    monkeypatch.setattr(lsh_tiles, "ROWS_A_TILE", 5)
    for lengths in (None, [23, 9, 0]):
        sorted_rounds = draw_rounds(rounds, 3, 23, size, lengths)
        others = reference_pairs(sorted_rounds, causal) & ~torch.eye(23, dtype=torch.bool)
        assert torch.equal(count_pairs(sorted_rounds, causal), others.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_mask_is_zero_or_minus_infinity_in_every_dtype(dtype: torch.dtype) -> None:
    layout = make_layout(draw_rounds(1, 1, 8, 4), 0, True)
    slab = next(layout.slabs())
    mask, _ = layout.mask(slab, dtype)
    assert mask.dtype == dtype
    assert torch.equal(mask.double(), layout.mask(slab, torch.float64)[0])
    assert set(mask.unique().tolist()) == {0.0, -math.inf}


def test_layout_pads_first_and_last_chunk_with_empty_slots() -> None:
    layout = make_layout(rounds_of([[[2, 0, 1]]], 2), 0, True)
    assert layout.key_position.tolist() == [[[LAST_POSITION, LAST_POSITION, 2, 0], [2, 0, 1, LAST_POSITION]]]
    assert layout.last_visible.tolist() == [[[1, -1], [0, -1]]]  # causal, and an empty slot is no query


@pytest.mark.parametrize(("slab", "engine"), [(1024, "cpu"), (1024, "plain"), (8, "cpu"), (1, "cpu")])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_softmax_and_gradients_equal_reference(padded: bool, causal: bool, slab: int, engine: str, monkeypatch) -> None:
    monkeypatch.setattr(lsh_tiles, "ROWS_A_SLAB", slab)  # several rows, chunks of one, parts of a chunk
    monkeypatch.setattr(lsh_tiles, "ROWS_A_TILE", 3)
    if engine == "plain":  # used on other devices
        monkeypatch.setattr(lsh_rounds, "attend", merge.attend_unfused)
        monkeypatch.setattr(lsh_rounds, "attend_backward", merge.attend_unfused_backward)
    sorted_rounds = draw_rounds(3, 2, 30, 4, [30, 17] if padded else None)
    q, k, v = (torch.randn(2, 30, 6, dtype=torch.float64) for _ in range(3))
    if padded:
        v[1, 17:] = 0
    for x in (q, k, v):
        x.requires_grad_()
    out = softmax_over_rounds(q, k, v, sorted_rounds, causal, 0.7)
    scores = 0.7 * q @ (k / k.norm(dim=-1, keepdim=True)).mT
    visible = reference_pairs(sorted_rounds, causal)
    weights = scores.masked_fill(~visible, -1e30).softmax(-1) * visible
    weight = torch.randn_like(out)
    if padded:
        weight[1, 17:] = 0
    torch.testing.assert_close(out, weights @ v)
    got = torch.autograd.grad((out * weight).sum(), (q, k, v))
    for actual, expected in zip(got, torch.autograd.grad((weights @ v * weight).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_second_derivative_is_refused() -> None:
    q = torch.randn(1, 8, 4, requires_grad=True)
    out = softmax_over_rounds(q, q, q, draw_rounds(1, 1, 8, 4), True, 1.0)
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="no second derivative; backend=dense has one"):
        grad.sum().backward()


def test_degenerate_keys_get_zero_inverse_norm_and_gradient() -> None:
    k = torch.tensor([[3.0, 4], [0, 0], [1e-42, 0], [torch.inf, 0]])
    assert inverse_norms(k).tolist() == [pytest.approx(0.2), 0, 0, 0]
    assert inverse_norms(k.bfloat16()).dtype == torch.float32
    q, k = torch.randn(1, 6, 4), torch.randn(1, 6, 4)
    k[0, 2] = 0
    k.requires_grad_()
    out = softmax_over_rounds(q, k, q, draw_rounds(2, 1, 6, 2), False, 1.0)
    (grad,) = torch.autograd.grad((out * torch.randn(out.shape)).sum(), k)
    assert torch.isfinite(out).all()
    assert torch.isfinite(grad).all()
    assert not grad[0, 2].any()
    assert grad[0, 1].any()


def test_half_precision_rounds_are_merged_in_float32() -> None:
    """Merged in bfloat16, sixteen rounds would have seven times the error of one rounding."""
    sorted_rounds = draw_rounds(16, 1, 256, 4)
    q, v = torch.randn(2, 1, 256, 16).bfloat16()
    got = softmax_over_rounds(q, q, v, sorted_rounds, False, 0.25)
    want = softmax_over_rounds(q.double(), q.double(), v.double(), sorted_rounds, False, 0.25)
    assert got.dtype == torch.bfloat16
    assert (got - want).norm() < 3 * (want.bfloat16() - want).norm()


@pytest.mark.parametrize("count", [1, 2, 32])
def test_argmax_abs_ignores_signs(count: int) -> None:
    x = torch.randn(500, 3, count, dtype=torch.float64)
    index = lsh._argmax_abs(x).long()
    assert index.shape == (500, 3, 1)
    magnitude = x.abs()
    torch.testing.assert_close(magnitude.gather(-1, index), magnitude.amax(-1, keepdim=True), rtol=1e-5, atol=0)
    assert (index == magnitude.argmax(-1, keepdim=True)).double().mean() > 0.99
    assert lsh._argmax_abs(torch.zeros(1, count, dtype=torch.float64)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_key_close_to_a_border_has_the_same_bucket_in_every_dtype(dtype: torch.dtype) -> None:
    """Directions in pairs that differ by one rounding: float32 products do not tell which is larger."""
    rotations, x = lsh.draw_rotations(2, 16, 0), torch.randn(1, 1, 3000, 16).to(dtype)
    rotations[:, :, 1::2] = rotations[:, :, ::2]
    rotations[:, :, 1::2, 5] = torch.nextafter(rotations[:, :, ::2, 5], torch.tensor(torch.inf))
    buckets, exact = (lsh.find_buckets(q, rotations, 32, [3000]) for q in (x, x.double()))
    assert torch.equal(buckets, exact)
    projections = torch.einsum("hdw,nw->hnd", rotations[:, 0, :32].double(), x[0, 0].double()).abs()
    assert (projections.argmax(-1) % 2 == 1).double().mean() > 0.3  # the second of a pair is larger about half the time
