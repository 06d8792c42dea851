"""Reformer: whom it lets see whom, what it refuses, what its hashes find, and what it costs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from write_counter import WriteCounter

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape
from efficient_attn.instruments.memory import measure_footprint, measure_training_footprint
from efficient_attn.kernels.dense import softmax_attention
from efficient_attn.kernels.hashed import rounds as lsh_rounds
from efficient_attn.kernels.hashed.lsh import sort_rounds
from efficient_attn.kernels.softmax import merge
from efficient_attn.testing.tensor_comparison import assert_close

DIMS = ea.Dims(head_dim=8)


def reformer(
    n_hashes: int = 4, bucket_size: int = 64, *, width: int = 8, seed: int = 0, backend: str | None = None
) -> ea.Attention:
    dims = ea.Dims(head_dim=width)
    return ea.create(f"reformer:n_hashes={n_hashes}:bucket_size={bucket_size}", dims=dims, seed=seed, backend=backend)


def drawn(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Queries, which are keys, and values, in float64."""
    generator = torch.Generator().manual_seed(seed)
    q, v = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return q, v


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


# -- what it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["chunks", "dense"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bucket_size", [50, 64, 1000])
def test_one_chunk_of_everything_is_softmax_over_all_others(bucket_size: int, causal: bool, backend: str) -> None:
    q, v = drawn(2, 3, 50, 8)
    allowed = torch.ones(50, 50, dtype=torch.bool).tril(-1 if causal else 49)
    allowed &= ~torch.eye(50, dtype=torch.bool)
    allowed[0, 0] = causal  # the first row sees nothing else
    out = reformer(2, bucket_size, backend=backend)(q, q, v, ea.Mask(causal=causal))
    assert_close(out, softmax_attention(q, unit(q), v, allowed), "over all others")


@pytest.mark.parametrize("backend", ["chunks", "dense"])
def test_by_hand_two_opposite_clusters_see_themselves_only(backend: str) -> None:
    """Six vectors one way, six the other: chunks of six are the clusters, but the second also sees the first."""
    q, v = drawn(1, 1, 12, 8)
    signs = torch.tensor([1.0, -1] * 6)
    q = signs[:, None] * (torch.ones(8) + 0.001 * q)
    attn = reformer(1, 6, backend=backend).double()
    first = (q[0, 0, 0] @ attn.rotations[0, 0, 0]).item() > 0  # pyright: ignore
    ahead = signs > 0 if first else signs < 0  # the cluster whose bucket is 0
    allowed = (ahead[:, None] & ahead) | ~ahead[:, None]
    allowed &= ~torch.eye(12, dtype=torch.bool)
    assert_close(attn(q, q, v), softmax_attention(q, unit(q), v, allowed), "two clusters")


def test_weights_are_the_definitions_by_a_plain_loop() -> None:
    """From the sorted orders on, in Python: a pair found in several rounds counts once, i with itself only alone."""
    n, size = 30, 4
    attn = reformer(3, size).double()
    q, _ = drawn(1, 1, n, 8)
    out = attn(q, q, torch.eye(n, dtype=torch.float64)[None, None], ea.Mask(causal=True))[0, 0]
    orders = sort_rounds(q, attn.rotations, size).order[:, 0].tolist()  # pyright: ignore
    repeated = 0
    for i in range(n):
        chunks = []
        for order in orders:
            mine = order.index(i) // size
            chunks.append({j for j in order[max(mine - 1, 0) * size : (mine + 1) * size] if j < i})
        seen = sorted(set().union(*chunks))
        repeated += sum(map(len, chunks)) - len(seen)
        scores = torch.stack([q[0, 0, i] @ unit(q[0, 0, j]) * 8**-0.5 for j in seen or [i]])
        want = torch.zeros(n, dtype=torch.float64)
        want[seen or [i]] = scores.softmax(0)
        assert_close(out[i], want, f"the weights of query {i}")
    assert repeated > 50  # so that counting twice would show


def test_padded_rows_are_the_trimmed_ones_with_their_own_numbers_of_buckets() -> None:
    lengths = [300, 9, 41, 150]
    attn = reformer(2, 8)
    q, v = drawn(4, 2, 300, 8)
    for causal in (False, True):
        out = attn(q, q, v, ea.Mask(causal=causal, key_lengths=torch.tensor(lengths)))
        for b, length in enumerate(lengths):
            alone = (x[b : b + 1, :, :length] for x in (q, q, v))
            assert_close(out[b : b + 1, :, :length], attn(*alone, mask=ea.Mask(causal=causal)), f"row {b}")
            assert not out[b, :, length:].any()  # a padded position is no query either


def test_holes_are_as_if_removed() -> None:
    attn, (q, v) = reformer(2, 8), drawn(1, 2, 100, 8)
    holes = torch.arange(100) % 3 != 0
    for causal in (False, True):
        out = attn(q, q, v, ea.Mask(causal=causal, key_mask=holes[None]))
        alone = attn(*(x[:, :, holes] for x in (q, q, v)), mask=ea.Mask(causal=causal))
        assert_close(out[:, :, holes], alone, "the positions that are left")
        assert not out[:, :, ~holes].any()


@pytest.mark.parametrize("backend", ["chunks", "dense", "other devices"])
def test_garbage_in_the_padding_reaches_nothing(backend: str, monkeypatch) -> None:
    """No row, not even its own, and no gradient."""
    if backend == "other devices":
        monkeypatch.setattr(lsh_rounds, "attend", merge.attend_unfused)
        monkeypatch.setattr(lsh_rounds, "attend_backward", merge.attend_unfused_backward)
    attn, (q, v) = reformer(2, 8, backend="dense" if backend == "dense" else "chunks"), drawn(2, 2, 60, 8)
    padded = ea.Mask(key_lengths=torch.tensor([60, 33]))
    answers = []
    for garbage in (0.0, torch.finfo(torch.float64).max):
        x = q.clone()
        x[1, :, 33:] = garbage
        x.requires_grad_()
        out = attn(x, x, v, padded)
        answers.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for clean, spoiled in zip(*answers, strict=True):
        assert torch.equal(clean, spoiled)
        assert not spoiled[1, :, 33:].any()


def test_query_lengths_are_about_rows_of_the_output_alone() -> None:
    """Unwanted queries stay keys, and hash as they are."""
    attn, (q, v) = reformer(2, 8), drawn(2, 2, 100, 8)
    wanted = ea.Mask(query_lengths=torch.tensor([60, 100]))
    want = attn(q, q, v)
    want[0, :, 60:] = 0
    assert_close(attn(q, q, v, wanted), want, "rows")


def test_queries_and_keys_have_gradients_of_their_own() -> None:
    """One tensor gets the sum; two equal ones get a part each."""
    q, v = drawn(1, 2, 60, 8)
    attn, weight = reformer(2, 8), torch.randn(q.shape, dtype=torch.float64)
    one, two, three = (q.clone().requires_grad_() for _ in range(3))
    (whole,) = torch.autograd.grad((attn(one, one, v) * weight).sum(), one)
    by_q, by_k = torch.autograd.grad((attn(two, three, v) * weight).sum(), (two, three))
    assert by_q.norm() > 0.1 * whole.norm()
    assert by_k.norm() > 0.01 * whole.norm()
    assert_close(by_q + by_k, whole, "the sum of both")
    assert (by_k * q).sum(-1).abs().max() < 1e-12  # the length of a key is nothing to it


@pytest.mark.parametrize("backend", ["chunks", "dense"])
def test_zero_vectors_are_harmless(backend: str) -> None:
    attn, (q, v) = reformer(2, 8, backend=backend), drawn(1, 2, 60, 8)
    q[:, :, ::4] = 0
    q.requires_grad_()
    out = attn(q, q, v)
    (grad,) = torch.autograd.grad(out.square().sum(), q)
    assert torch.isfinite(out).all()
    assert torch.isfinite(grad).all()


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_k_must_be_q() -> None:
    attn, (q, v) = reformer(), drawn(1, 2, 20, 8)
    other = q.clone()
    assert torch.equal(attn(q, other, v), attn(q, q, v))  # equal values will do
    other[0, 1, 19, 7] += 1e-9
    with pytest.raises(ea.UsageError, match=r"^reformer.*: k must be q"):
        attn(q, other, v)
    with pytest.raises(ea.UsageError, match="k must be q"):  # one memory, read another way
        attn(q[..., :10, :], q[..., 10:, :], v[..., :10, :])
    with pytest.raises(ea.UsageError, match="k must be q"):
        attn(torch.ones(1, 2, 8, 8), torch.ones(1, 2, 8, 8).triu(), torch.ones(1, 2, 8, 8))


def test_a_transposed_view_of_q_is_another_k() -> None:
    q = torch.randn(1, 1, 8, 8)
    with pytest.raises(ea.UsageError, match="k must be q"):
        reformer()(q, q.mT, q)


def test_its_sampler_gives_one_tensor() -> None:
    shape = Shape(2, 3, 3, 10, 10, 8, 5)
    sample = reformer().sample(shape, generator=torch.Generator().manual_seed(1))
    assert sample.q is sample.k
    assert sample.v.shape == (2, 3, 10, 5)


@pytest.mark.parametrize(("option", "value"), [("n_hashes", 0), ("bucket_size", 0), ("bucket_size", -3)])
def test_options_are_checked(option: str, value: int) -> None:
    with pytest.raises(ea.UsageError, match=f"reformer: {option} must be at least 1, not {value}"):
        ea.create(f"reformer:{option}={value}", dims=DIMS)


def test_without_a_width_it_cannot_be_made() -> None:
    with pytest.raises(ea.UsageError, match="reformer: give dims with head_dim"):
        ea.create("reformer")


def test_rotations_come_from_the_seed_and_travel_in_the_state_dict() -> None:
    q, v = drawn(1, 2, 200, 8)
    one, other = reformer(1, 8, seed=0), reformer(1, 8, seed=1)
    assert torch.equal(one(q, q, v), reformer(1, 8, seed=0)(q, q, v))
    assert not torch.equal(one(q, q, v), other(q, q, v))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(q, q, v), other(q, q, v))


# -- what its hashes find ----------------------------------------------------------------------------------------------


def meetings(q: Tensor, partner: Tensor) -> float:
    """How often a position shares a chunk with its partner, which stands after it."""
    both = torch.stack([q, partner], 3).flatten(2, 3)
    attn = reformer(1, 16, width=32)
    chunk = sort_rounds(both, attn.rotations, 16).chunk  # pyright: ignore
    return (chunk[..., ::2] == chunk[..., 1::2]).double().mean().item()


def test_similar_vectors_meet_more_often() -> None:
    generator = torch.Generator().manual_seed(3)
    q, noise = (torch.randn(1, 4, 256, 32, generator=generator) for _ in range(2))
    met = [meetings(q, c * q + (1 - c * c) ** 0.5 * noise) for c in (0.0, 0.5, 0.8, 0.95)]
    assert met[0] < 0.08  # 32 chunks: 0.03 and a little by chance
    for less, more in pairwise(met):
        assert more > less + 0.08
    assert met[3] > 0.5


def test_more_rounds_find_more_of_the_softmax() -> None:
    """Clusters of 16, in any order, each nearly all of its members' softmax."""
    n, generator = 512, torch.Generator().manual_seed(4)
    centres = torch.randn(1, 2, n // 16, 32, generator=generator).repeat_interleave(16, 2)
    q = 10 * (centres + 0.3 * torch.randn(1, 2, n, 32, generator=generator))
    q = q[:, :, torch.randperm(n, generator=generator)]
    full = softmax_attention(q, unit(q), torch.eye(n).expand(1, 2, n, n), ~torch.eye(n, dtype=torch.bool))
    mass = [0.0]
    for rounds in (1, 2, 4, 8):
        attn = reformer(rounds, 16, width=32)
        seen = sort_rounds(q, attn.rotations, 16).visible_pairs(False).view(1, 2, n, n)  # pyright: ignore
        mass.append((full * seen).sum(-1).mean().item())
        assert mass[-1] > 2 * seen.double().mean().item()  # as many keys at random would have no more than their share
        assert mass[-1] > mass[-2] + 0.05
    assert mass[1] < 0.6
    assert mass[4] > 0.8


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_cost_counts_two_chunks_a_round_and_the_hash() -> None:
    attn = ea.create("reformer:n_hashes=3:bucket_size=16", dims=ea.Dims(head_dim=8, value_dim=8))
    assert attn.growth.cost(64, 64, True) == 3 * 64 * (2 * 16 + 2 / 2)  # four buckets: two directions of half a pair
    assert attn.growth.cost(64, 64, False) == attn.growth.cost(64, 64, True)
    assert attn.pairs(64, 64, False) is None
    assert attn.pairs_computed(65, 65, False) == 3 * 5 * 16 * 32
    doubled = attn.growth.cost(1 << 17, 1 << 17, True) / attn.growth.cost(1 << 16, 1 << 16, True)
    assert 2 < doubled < 2.2


LONG = 1 << 14


@pytest.mark.slow
def test_forward_memory_is_the_output_and_less_than_as_much_again() -> None:
    attn, mask = reformer(width=64), ea.Mask(causal=True)
    q, v = torch.randn(2, 1, 4, LONG, 64)
    peak = measure_footprint(lambda: attn(q, q, v, mask), device="cpu").peak
    assert peak is not None
    assert q.numel() * 4 < peak <= 2 * q.numel() * 4


@pytest.mark.slow
def test_training_memory_is_six_outputs_at_most() -> None:
    """One of them the output, three the gradients."""
    attn, (gradient, q, v) = reformer(width=64), torch.randn(3, 1, 4, LONG, 64)
    leaves = [x.clone().requires_grad_() for x in (q, q, v)]
    found = measure_training_footprint(
        lambda: attn(*leaves), lambda out: torch.autograd.grad(out, leaves, gradient), device="cpu"
    )
    assert found.peak is not None
    assert found.saved is not None
    assert found.peak <= 6 * q.numel() * 4
    assert found.saved <= q.numel() * 4 / 4  # sorted positions, their chunks, two numbers a row


def test_long_chunks_take_memory_in_proportion() -> None:
    """Tiles of whole chunks, 8192 x 16384 pairs, would be 512 MiB."""
    attn = reformer(1, 8192, width=8)
    q = torch.randn(1, 1, 8192, 8)
    peak = measure_footprint(lambda: attn(q, q, q), device="cpu").peak
    assert peak is not None
    assert peak < 64 << 20


def test_work_grows_as_the_length() -> None:
    """Four times the length, far less than the sixteen times of all pairs."""

    def written(n: int) -> int:
        attn = reformer(2, 32, width=16)
        q = torch.randn(1, 1, n, 16)
        with torch.no_grad(), WriteCounter() as mode:
            attn(q, q, q)
        return mode.numbers

    short, long = written(1 << 11), written(1 << 13)
    assert short > 2 * 32 * (1 << 11)  # the scores at least, of each query with its own bucket in each round
    assert long < 4.5 * short
