"""Reformer: its definition, invalid inputs, the quality of its hashes, and its cost."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from write_counter import WriteCounter

import efficient_attn as ea
from efficient_attn.contract.shapes import Shape
from efficient_attn.instruments.memory import measure_footprint
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


def draw(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Shared queries and keys, and values, in float64."""
    generator = torch.Generator().manual_seed(seed)
    q, v = (torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return q, v


def normalize(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


# -- definition ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["chunks", "dense"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bucket_size", [50, 64, 1000])
def test_one_chunk_equals_softmax_over_all_other_keys(bucket_size: int, causal: bool, backend: str) -> None:
    q, v = draw(2, 3, 50, 8)
    allowed = torch.ones(50, 50, dtype=torch.bool).tril(-1 if causal else 49)
    allowed &= ~torch.eye(50, dtype=torch.bool)
    allowed[0, 0] = causal  # the first row has no other key
    out = reformer(2, bucket_size, backend=backend)(q, q, v, ea.Mask(causal=causal))
    assert_close(out, softmax_attention(q, normalize(q), v, allowed), "all other keys")


@pytest.mark.parametrize("backend", ["chunks", "dense"])
def test_two_opposite_clusters_are_separated(backend: str) -> None:
    """Six vectors and six opposite ones: chunks of six are the clusters, and the second chunk also reads the first."""
    q, v = draw(1, 1, 12, 8)
    signs = torch.tensor([1.0, -1] * 6)
    q = signs[:, None] * (torch.ones(8) + 0.001 * q)
    attn = reformer(1, 6, backend=backend).double()
    positive_first = (q[0, 0, 0] @ attn.rotations[0, 0, 0]).item() > 0  # pyright: ignore
    ahead = signs > 0 if positive_first else signs < 0  # the cluster whose bucket is 0
    allowed = (ahead[:, None] & ahead) | ~ahead[:, None]
    allowed &= ~torch.eye(12, dtype=torch.bool)
    assert_close(attn(q, q, v), softmax_attention(q, normalize(q), v, allowed), "two clusters")


def test_weights_equal_a_loop_over_pairs() -> None:
    """Pairs from the sorted orders: repeated pairs count once, and a query reads itself only if it has no other key."""
    n, size = 30, 4
    attn = reformer(3, size).double()
    q, _ = draw(1, 1, n, 8)
    out = attn(q, q, torch.eye(n, dtype=torch.float64)[None, None], ea.Mask(causal=True))[0, 0]
    orders = sort_rounds(q, attn.rotations, size).order[:, 0].tolist()  # pyright: ignore
    repeated = 0
    for i in range(n):
        chunks = []
        for order in orders:
            chunk = order.index(i) // size
            chunks.append({j for j in order[max(chunk - 1, 0) * size : (chunk + 1) * size] if j < i})
        seen = sorted(set().union(*chunks))
        repeated += sum(map(len, chunks)) - len(seen)
        scores = torch.stack([q[0, 0, i] @ normalize(q[0, 0, j]) * 8**-0.5 for j in seen or [i]])
        want = torch.zeros(n, dtype=torch.float64)
        want[seen or [i]] = scores.softmax(0)
        assert_close(out[i], want, f"the weights of query {i}")
    assert repeated > 50  # enough to detect double counting


def test_padded_rows_equal_trimmed_rows() -> None:
    lengths = [300, 9, 41, 150]
    attn = reformer(2, 8)
    q, v = draw(4, 2, 300, 8)
    for causal in (False, True):
        out = attn(q, q, v, ea.Mask(causal=causal, key_lengths=torch.tensor(lengths)))
        for b, length in enumerate(lengths):
            alone = (x[b : b + 1, :, :length] for x in (q, q, v))
            assert_close(out[b : b + 1, :, :length], attn(*alone, mask=ea.Mask(causal=causal)), f"row {b}")
            assert not out[b, :, length:].any()  # padded queries give zeros


def test_masked_keys_have_no_effect() -> None:
    attn, (q, v) = reformer(2, 8), draw(1, 2, 100, 8)
    holes = torch.arange(100) % 3 != 0
    for causal in (False, True):
        out = attn(q, q, v, ea.Mask(causal=causal, key_mask=holes[None]))
        alone = attn(*(x[:, :, holes] for x in (q, q, v)), mask=ea.Mask(causal=causal))
        assert_close(out[:, :, holes], alone, "the remaining positions")
        assert not out[:, :, ~holes].any()


@pytest.mark.parametrize("backend", ["chunks", "dense", "other devices"])
def test_padding_values_have_no_effect(backend: str, monkeypatch) -> None:
    """Neither outputs nor gradients change, and both are zero in the padding."""
    if backend == "other devices":
        monkeypatch.setattr(lsh_rounds, "attend", merge.attend_unfused)
        monkeypatch.setattr(lsh_rounds, "attend_backward", merge.attend_unfused_backward)
    attn, (q, v) = reformer(2, 8, backend="dense" if backend == "dense" else "chunks"), draw(2, 2, 60, 8)
    padded = ea.Mask(key_lengths=torch.tensor([60, 33]))
    results = []
    for garbage in (0.0, torch.finfo(torch.float64).max):
        x = q.clone()
        x[1, :, 33:] = garbage
        x.requires_grad_()
        out = attn(x, x, v, padded)
        results.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for clean, with_garbage in zip(*results, strict=True):
        assert torch.equal(clean, with_garbage)
        assert not with_garbage[1, :, 33:].any()


def test_query_lengths_only_zero_output_rows() -> None:
    """Padded queries are still keys, with the same hashes."""
    attn, (q, v) = reformer(2, 8), draw(2, 2, 100, 8)
    mask = ea.Mask(query_lengths=torch.tensor([60, 100]))
    want = attn(q, q, v)
    want[0, :, 60:] = 0
    assert_close(attn(q, q, v, mask), want, "rows")


def test_queries_and_keys_have_separate_gradients() -> None:
    """A shared tensor has the sum of both gradients."""
    q, v = draw(1, 2, 60, 8)
    attn, weight = reformer(2, 8), torch.randn(q.shape, dtype=torch.float64)
    shared, query, key = (q.clone().requires_grad_() for _ in range(3))
    (whole,) = torch.autograd.grad((attn(shared, shared, v) * weight).sum(), shared)
    by_q, by_k = torch.autograd.grad((attn(query, key, v) * weight).sum(), (query, key))
    assert by_q.norm() > 0.1 * whole.norm()
    assert by_k.norm() > 0.01 * whole.norm()
    assert_close(by_q + by_k, whole, "the sum of both")
    assert (by_k * q).sum(-1).abs().max() < 1e-12  # the norm of a key has no effect


@pytest.mark.parametrize("backend", ["chunks", "dense"])
def test_zero_queries_have_finite_outputs_and_gradients(backend: str) -> None:
    attn, (q, v) = reformer(2, 8, backend=backend), draw(1, 2, 60, 8)
    q[:, :, ::4] = 0
    q.requires_grad_()
    out = attn(q, q, v)
    (grad,) = torch.autograd.grad(out.square().sum(), q)
    assert torch.isfinite(out).all()
    assert torch.isfinite(grad).all()


# -- invalid inputs and options ----------------------------------------------------------------------------------------


def test_k_other_than_q_is_refused() -> None:
    attn, (q, v) = reformer(), draw(1, 2, 20, 8)
    other = q.clone()
    assert torch.equal(attn(q, other, v), attn(q, q, v))  # equal values are accepted
    other[0, 1, 19, 7] += 1e-9
    with pytest.raises(ea.UsageError, match=r"^reformer.*: k must be q"):
        attn(q, other, v)
    with pytest.raises(ea.UsageError, match="k must be q"):  # the same memory with another offset
        attn(q[..., :10, :], q[..., 10:, :], v[..., :10, :])
    with pytest.raises(ea.UsageError, match="k must be q"):
        attn(torch.ones(1, 2, 8, 8), torch.ones(1, 2, 8, 8).triu(), torch.ones(1, 2, 8, 8))


def test_a_transposed_view_of_q_is_refused_as_k() -> None:
    q = torch.randn(1, 1, 8, 8)
    with pytest.raises(ea.UsageError, match="k must be q"):
        reformer()(q, q.mT, q)


def test_samples_use_one_tensor_for_q_and_k() -> None:
    shape = Shape(2, 3, 3, 10, 10, 8, 5)
    sample = reformer().sample(shape, generator=torch.Generator().manual_seed(1))
    assert sample.q is sample.k
    assert sample.v.shape == (2, 3, 10, 5)


@pytest.mark.parametrize(("option", "value"), [("n_hashes", 0), ("bucket_size", 0), ("bucket_size", -3)])
def test_options_below_one_are_refused(option: str, value: int) -> None:
    with pytest.raises(ea.UsageError, match=f"reformer: {option} must be at least 1, not {value}"):
        ea.create(f"reformer:{option}={value}", dims=DIMS)


def test_head_dim_is_required() -> None:
    with pytest.raises(ea.UsageError, match="reformer: give dims with head_dim"):
        ea.create("reformer")


def test_rotations_depend_on_the_seed_and_are_in_the_state_dict() -> None:
    q, v = draw(1, 2, 200, 8)
    one, other = reformer(1, 8, seed=0), reformer(1, 8, seed=1)
    assert torch.equal(one(q, q, v), reformer(1, 8, seed=0)(q, q, v))
    assert not torch.equal(one(q, q, v), other(q, q, v))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(q, q, v), other(q, q, v))


# -- quality of the hashes ---------------------------------------------------------------------------------------------


def chunk_sharing(q: Tensor, partner: Tensor) -> float:
    """The share of positions in one chunk with their partner, the next position."""
    both = torch.stack([q, partner], 3).flatten(2, 3)
    attn = reformer(1, 16, width=32)
    chunk = sort_rounds(both, attn.rotations, 16).chunk  # pyright: ignore
    return (chunk[..., ::2] == chunk[..., 1::2]).double().mean().item()


def test_similar_vectors_share_chunks_more_often() -> None:
    generator = torch.Generator().manual_seed(3)
    q, noise = (torch.randn(1, 4, 256, 32, generator=generator) for _ in range(2))
    rates = [chunk_sharing(q, c * q + (1 - c * c) ** 0.5 * noise) for c in (0.0, 0.5, 0.8, 0.95)]
    assert rates[0] < 0.08  # 32 chunks: 0.03 is expected by chance
    for less, more in pairwise(rates):
        assert more > less + 0.08
    assert rates[3] > 0.5


def test_more_rounds_cover_more_softmax_mass() -> None:
    """Clusters of 16, shuffled; each has nearly all softmax mass of its members."""
    n, generator = 512, torch.Generator().manual_seed(4)
    centres = torch.randn(1, 2, n // 16, 32, generator=generator).repeat_interleave(16, 2)
    q = 10 * (centres + 0.3 * torch.randn(1, 2, n, 32, generator=generator))
    q = q[:, :, torch.randperm(n, generator=generator)]
    full = softmax_attention(q, normalize(q), torch.eye(n).expand(1, 2, n, n), ~torch.eye(n, dtype=torch.bool))
    mass = [0.0]
    for rounds in (1, 2, 4, 8):
        attn = reformer(rounds, 16, width=32)
        seen = sort_rounds(q, attn.rotations, 16).visible_pairs(False).view(1, 2, n, n)  # pyright: ignore
        mass.append((full * seen).sum(-1).mean().item())
        assert mass[-1] > 2 * seen.double().mean().item()  # more than random keys of the same number
        assert mass[-1] > mass[-2] + 0.05
    assert mass[1] < 0.6
    assert mass[4] > 0.8


# -- cost --------------------------------------------------------------------------------------------------------------


def test_cost_includes_two_chunks_per_round_and_the_hash() -> None:
    attn = ea.create("reformer:n_hashes=3:bucket_size=16", dims=ea.Dims(head_dim=8, value_dim=8))
    assert attn.growth.cost(64, 64, True) == 3 * 64 * (2 * 16 + 2 / 2)  # four buckets: two directions of half a pair
    assert attn.growth.cost(64, 64, False) == attn.growth.cost(64, 64, True)
    assert attn.pairs(64, 64, False) is None
    assert attn.pairs_computed(65, 65, False) == 3 * 5 * 16 * 32
    doubled = attn.growth.cost(1 << 17, 1 << 17, True) / attn.growth.cost(1 << 16, 1 << 16, True)
    assert 2 < doubled < 2.2


LONG = 1 << 14


@pytest.mark.slow
@pytest.mark.sampled(6)
def test_forward_memory_is_at_most_two_outputs() -> None:
    attn, mask = reformer(width=64), ea.Mask(causal=True)
    q, v = torch.randn(2, 1, 4, LONG, 64)
    peak = measure_footprint(lambda: attn(q, q, v, mask), device="cpu").peak
    assert peak is not None
    assert q.numel() * 4 < peak <= 2 * q.numel() * 4


@pytest.mark.slow
@pytest.mark.sampled(6)
def test_training_memory_is_at_most_six_outputs() -> None:
    """The output and three gradients are four of them."""
    attn, (gradient, q, v) = reformer(width=64), torch.randn(3, 1, 4, LONG, 64)
    leaves = [x.clone().requires_grad_() for x in (q, q, v)]
    footprint = measure_footprint(
        lambda: attn(*leaves), lambda out: torch.autograd.grad(out, leaves, gradient), device="cpu"
    )
    assert footprint.peak is not None
    assert footprint.saved is not None
    assert footprint.peak <= 6 * q.numel() * 4
    assert footprint.saved <= q.numel() * 4 / 4  # sorted positions, their chunks, two numbers per row


@pytest.mark.sampled(4)
def test_memory_of_long_chunks_is_linear() -> None:
    """The scores of a whole chunk, 8192 x 16384 pairs, would take 512 MiB."""
    attn = reformer(1, 8192, width=8)
    q = torch.randn(1, 1, 8192, 8)
    peak = measure_footprint(lambda: attn(q, q, q), device="cpu").peak
    assert peak is not None
    assert peak < 64 << 20


def test_work_is_linear_in_the_length() -> None:
    """Four times the length takes less than 4.5 times the work, not sixteen times."""

    def written_elements(n: int) -> int:
        attn = reformer(2, 32, width=16)
        q = torch.randn(1, 1, n, 16)
        with torch.no_grad(), WriteCounter() as mode:
            attn(q, q, q)
        return mode.numbers

    short, long = written_elements(1 << 11), written_elements(1 << 13)
    assert short > 2 * 32 * (1 << 11)  # at least the scores of each query with its bucket in each round
    assert long < 4.5 * short
