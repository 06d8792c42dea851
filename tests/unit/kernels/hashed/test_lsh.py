"""Hashing, sorting and tiles: by hand where cases are tiny, by a plain loop over the definition where they are not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.hashed import chunk_tiles as lsh_tiles
from efficient_attn.kernels.hashed import lsh
from efficient_attn.kernels.hashed import rounds as lsh_rounds
from efficient_attn.kernels.hashed.chunk_tiles import LAST_POSITION, HashedConfig, make_layout
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


def drawn(rounds: int, rows: int, n: int, size: int, lengths: list[int] | None = None) -> Rounds:
    """Rounds in random orders; padding, at the end of a row, is last in each."""
    generator = torch.Generator().manual_seed(0)
    real = lengths or [n] * rows
    return rounds_of(
        [[[*torch.randperm(m, generator=generator).tolist(), *range(m, n)] for m in real] for _ in range(rounds)],
        size,
        lengths,
    )


def by_the_definition(rounds: Rounds, causal: bool) -> Tensor:
    """P_i over all rounds, in Python."""
    count, rows, n = rounds.order.shape
    seen = torch.zeros(rows, n, n, dtype=torch.bool)
    for row in range(rows):
        real = n if rounds.lengths is None else int(rounds.lengths[row])
        valid = rounds.order[0, row].tolist()[:real]
        place = [{j: s for s, j in enumerate(rounds.order[r, row].tolist())} for r in range(count)]
        for i in valid:
            for j in valid:
                apart = [p[i] // rounds.size - p[j] // rounds.size for p in place]
                seen[row, i, j] = i != j and any(a in (0, 1) for a in apart) and (j <= i or not causal)
            seen[row, i, i] = not seen[row, i].any()
    return seen


# -- hashing ---------------------------------------------------------------------------------------------------------


def test_a_bucket_is_the_nearest_of_the_directions_and_their_opposites() -> None:
    turned = torch.zeros(1, lsh.MAX_POLYTOPES, 1 << (lsh.BITS_PER_POLYTOPE - 1), 2)
    turned[0, 0, :2] = torch.eye(2)
    x = torch.tensor([[3.0, 1], [1, 3], [-3, 1], [1, -3], [0, 0]])[None, None]
    assert find_buckets(x, turned, 1, [4]).flatten().tolist() == [0, 1, 2, 3, 0]  # 4 positions, 4 buckets
    assert find_buckets(x, turned, 4, [8]).flatten().tolist() == [0, 0, 1, 0, 0]  # 2 buckets: the first direction only


def test_more_than_64_buckets_are_two_hashes_of_one() -> None:
    turned, x = draw_rotations(3, 8, 0), torch.randn(1, 2, 50, 8)
    both = find_buckets(x, turned, 1, [200])  # 256
    first, rest = find_buckets(x, turned, 1, [64]), find_buckets(x, turned[:, 1:], 1, [4])
    assert torch.equal(both, first * 4 + rest)
    assert both.max() < 256
    assert both.max() > 64


@pytest.mark.parametrize(
    ("length", "size", "bits"),
    [(0, 64, 1), (1, 64, 1), (128, 64, 1), (129, 64, 2), (256, 64, 2), (257, 64, 3), (4096, 64, 6), (1 << 30, 1, 24)],
)
def test_buckets_are_a_power_of_two_that_hold_bucket_size_or_fewer(length: int, size: int, bits: int) -> None:
    assert choose_hash_bits(length, size) == bits


def test_directions_grow_as_the_logarithm() -> None:
    assert [count_directions(b) for b in (1, 2, 6, 7, 12)] == [[1], [2], [32], [32, 1], [32, 32]]
    for bits in range(1, 25):
        assert math.prod(2 * d for d in count_directions(bits)) == 1 << bits
        assert sum(count_directions(bits)) <= 32 * math.ceil(bits / 6)


def test_rotations_are_a_function_of_the_seed_alone() -> None:
    state = torch.get_rng_state()
    assert torch.equal(draw_rotations(2, 4, 7), draw_rotations(2, 4, 7))
    assert not torch.equal(draw_rotations(2, 4, 7), draw_rotations(2, 4, 8))
    assert torch.equal(state, torch.get_rng_state())


def test_half_precision_is_hashed_in_float32() -> None:
    x, turned = torch.randn(1, 2, 300, 16).bfloat16(), draw_rotations(2, 16, 0)
    assert torch.equal(find_buckets(x, turned, 4, [300]), find_buckets(x.float(), turned, 4, [300]))


# -- sorting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [9, 5000])  # torch sorts long runs another way
def test_positions_are_sorted_by_bucket_then_position_padding_last(n: int) -> None:
    x, turned = torch.randn(2, 3, n, 8), draw_rotations(2, 8, 0)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, ::3] = False
    lengths = valid.sum(1).tolist()
    got = sort_rounds(x, turned, 4, valid)
    codes = find_buckets(x, turned, 4, lengths).view(2, 6, n).tolist()
    for r in range(2):
        for row in range(6):
            real = valid[row // 3].tolist()
            want = sorted(range(n), key=lambda j, c=codes[r][row], real=real: (not real[j], c[j] if real[j] else 0, j))
            assert got.order[r, row].tolist() == want
            assert got.chunk[r, row].tolist() == [s // 4 for s in torch.tensor(want).argsort().tolist()]
    assert got.lengths is not None
    assert got.lengths.tolist() == [lengths[0]] * 3 + [lengths[1]] * 3


def test_a_padded_row_is_sorted_as_alone_whatever_the_others_lengths() -> None:
    turned, lengths = (
        draw_rotations(2, 8, 0),
        [700, 40, 40, 130, 0],
    )  # buckets of 4: five numbers of bits, equal ones beside
    x = torch.randn(5, 2, 700, 8, dtype=torch.float64)
    together = sort_rounds(x, turned, 4, torch.arange(700) < torch.tensor(lengths)[:, None])
    assert len({choose_hash_bits(length, 4) for length in lengths}) == 4
    for b, length in enumerate(lengths[:-1]):
        alone = sort_rounds(x[b : b + 1, :, :length], turned, 4)
        assert torch.equal(together.order[:, 2 * b : 2 * b + 2, :length], alone.order)
        assert torch.equal(together.order[:, 2 * b, length:], torch.arange(length, 700).expand(2, -1))


# -- who sees whom -----------------------------------------------------------------------------------------------------


def test_a_query_sees_its_chunk_and_the_one_before_without_wrapping() -> None:
    seen = rounds_of([[[4, 0, 2, 1, 5, 3]]], 2).visible_pairs(False)[0]
    assert [row.nonzero()[:, 0].tolist() for row in seen] == [[4], [0, 2, 4], [0, 1, 4], [1, 2, 5], [0], [1, 2, 3]]
    causal = rounds_of([[[4, 0, 2, 1, 5, 3]]], 2).visible_pairs(True)[0]
    assert [row.nonzero()[:, 0].tolist() for row in causal] == [[0], [0], [0, 1], [1, 2], [0], [1, 2, 3]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rounds", "size"), [(1, 3), (3, 3), (4, 1), (2, 17), (2, 400)])
def test_the_union_of_rounds_is_the_definitions(rounds: int, size: int, causal: bool) -> None:
    for lengths in (None, [17, 11, 0]):
        given = drawn(rounds, 3, 17, size, lengths)
        assert torch.equal(given.visible_pairs(causal), by_the_definition(given, causal))


def test_a_query_sees_itself_only_when_it_sees_nothing_else() -> None:
    seen = drawn(2, 2, 40, 4).visible_pairs(True)
    alone = seen.diagonal(dim1=1, dim2=2)
    assert torch.equal(alone, seen.sum(-1) == (alone.int()))  # whoever sees itself sees one key
    assert alone[:, 0].all()
    assert 2 < alone.sum() < 40


# -- tiles -------------------------------------------------------------------------------------------------------------


def counted(rounds: Rounds, causal: bool) -> Tensor:
    """How often the tiles count each pair ``[R, N, N]``."""
    _, rows, n = rounds.order.shape
    times = torch.zeros(rows * n, rows * n)
    for layout, slab in HashedConfig(rounds, causal, 1.0).tiles():
        mask, blind = layout.mask(slab, torch.float32)
        assert torch.equal(blind, (mask < 0).all(-1))
        assert set(mask.unique().tolist()) <= {0.0, -math.inf}
        at = layout.keys(slab)
        keys = layout.windows(at[..., None])[..., 0][:, :, None].expand(mask.shape)
        queries = layout.queries(at, slab)[..., None].expand(mask.shape)
        real = layout.trim(mask == 0, slab)
        where = [layout.trim(x, slab)[real] for x in (queries, keys)]
        times.index_put_(tuple(where), torch.ones(len(where[0])), accumulate=True)
    blocks = times.view(rows, n, rows, n)
    assert blocks.sum() == blocks.diagonal(dim1=0, dim2=2).sum()  # rows do not meet
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("slab", [1, 12, 1024])
@pytest.mark.parametrize(("rounds", "size"), [(1, 3), (4, 3), (3, 8), (2, 23)])
def test_tiles_count_every_pair_of_the_union_once(rounds: int, size: int, slab: int, causal: bool, monkeypatch) -> None:
    """Whatever the slabs: parts of a chunk, some chunks, several rows."""
    monkeypatch.setattr(lsh_tiles, "ROWS_A_SLAB", slab)
    monkeypatch.setattr(lsh_tiles, "ROWS_A_TILE", 5)
    for lengths in (None, [23, 9, 0]):
        given = drawn(rounds, 3, 23, size, lengths)
        others = by_the_definition(given, causal) & ~torch.eye(23, dtype=torch.bool)
        assert torch.equal(counted(given, causal), others.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_mask_is_zero_or_minus_infinity_in_every_dtype(dtype: torch.dtype) -> None:
    layout = make_layout(drawn(1, 1, 8, 4), 0, True)
    slab = next(layout.slabs())
    mask, _ = layout.mask(slab, dtype)
    assert mask.dtype == dtype
    assert torch.equal(mask.double(), layout.mask(slab, torch.float64)[0])
    assert set(mask.unique().tolist()) == {0.0, -math.inf}


def test_a_layout_puts_empty_slots_before_the_first_chunk_and_after_the_last() -> None:
    layout = make_layout(rounds_of([[[2, 0, 1]]], 2), 0, True)
    assert layout.key_position.tolist() == [[[LAST_POSITION, LAST_POSITION, 2, 0], [2, 0, 1, LAST_POSITION]]]
    assert layout.last_visible.tolist() == [[[1, -1], [0, -1]]]  # causal, and an empty slot is no query


@pytest.mark.parametrize(("slab", "engine"), [(1024, "cpu"), (1024, "plain"), (8, "cpu"), (1, "cpu")])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_one_softmax_over_the_union_with_its_gradient(
    padded: bool, causal: bool, slab: int, engine: str, monkeypatch
) -> None:
    monkeypatch.setattr(lsh_tiles, "ROWS_A_SLAB", slab)  # several rows, chunks of one, parts of a chunk
    monkeypatch.setattr(lsh_tiles, "ROWS_A_TILE", 3)
    if engine == "plain":  # what other devices use
        monkeypatch.setattr(lsh_rounds, "attend", merge.attend_unfused)
        monkeypatch.setattr(lsh_rounds, "attend_backward", merge.attend_unfused_backward)
    given = drawn(3, 2, 30, 4, [30, 17] if padded else None)
    q, k, v = (torch.randn(2, 30, 6, dtype=torch.float64) for _ in range(3))
    if padded:
        v[1, 17:] = 0
    for x in (q, k, v):
        x.requires_grad_()
    out = softmax_over_rounds(q, k, v, HashedConfig(given, causal, 0.7))
    scores = 0.7 * q @ (k / k.norm(dim=-1, keepdim=True)).mT
    seen = by_the_definition(given, causal)
    weights = scores.masked_fill(~seen, -1e30).softmax(-1) * seen
    weight = torch.randn_like(out)
    if padded:
        weight[1, 17:] = 0
    torch.testing.assert_close(out, weights @ v)
    got = torch.autograd.grad((out * weight).sum(), (q, k, v))
    for one, other in zip(got, torch.autograd.grad((weights @ v * weight).sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_second_derivative_is_refused() -> None:
    q = torch.randn(1, 8, 4, requires_grad=True)
    out = softmax_over_rounds(q, q, q, HashedConfig(drawn(1, 1, 8, 4), True, 1.0))
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(ea.UnsupportedError, match="no second derivative; backend=dense has one"):
        grad.sum().backward()


def test_vectors_without_length_become_zeros_without_a_gradient() -> None:
    k = torch.tensor([[3.0, 4], [0, 0], [1e-42, 0], [torch.inf, 0]])
    assert inverse_norms(k).tolist() == [pytest.approx(0.2), 0, 0, 0]
    assert inverse_norms(k.bfloat16()).dtype == torch.float32
    q, k = torch.randn(1, 6, 4), torch.randn(1, 6, 4)
    k[0, 2] = 0
    k.requires_grad_()
    out = softmax_over_rounds(q, k, q, HashedConfig(drawn(2, 1, 6, 2), False, 1.0))
    (grad,) = torch.autograd.grad((out * torch.randn(out.shape)).sum(), k)
    assert torch.isfinite(out).all()
    assert torch.isfinite(grad).all()
    assert not grad[0, 2].any()
    assert grad[0, 1].any()


def test_half_precision_joins_rounds_in_float32() -> None:
    """Joined in bfloat16, sixteen rounds would be off by seven times what one rounding costs."""
    given = drawn(16, 1, 256, 4)
    q, v = torch.randn(2, 1, 256, 16).bfloat16()
    got = softmax_over_rounds(q, q, v, HashedConfig(given, False, 0.25))
    want = softmax_over_rounds(q.double(), q.double(), v.double(), HashedConfig(given, False, 0.25))
    assert got.dtype == torch.bfloat16
    assert (got - want).norm() < 3 * (want.bfloat16() - want).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 32])
def test_the_largest_is_found_whatever_its_sign(dtype: torch.dtype, count: int) -> None:
    x = torch.randn(500, 3, count, dtype=dtype)
    at = lsh._argmax_abs(x).long()
    assert at.shape == (500, 3, 1)
    size = x.abs()
    torch.testing.assert_close(size.gather(-1, at), size.amax(-1, keepdim=True), rtol=1e-5, atol=0)
    assert (at == size.argmax(-1, keepdim=True)).double().mean() > 0.99
    assert lsh._argmax_abs(torch.zeros(1, count, dtype=dtype)).item() == 0
