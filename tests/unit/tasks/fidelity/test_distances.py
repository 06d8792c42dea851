"""Fidelity against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
import tiny_suites
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.instruments.distance import relative_error
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.tasks.fidelity import distances, exact
from efficient_attn.tasks.fidelity.distances import measure_distances

N = 24


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, N, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    return 2 * q, k, v


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def _exact(q: Tensor, k: Tensor, *, causal: bool) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + torch.full((N, N), -torch.inf, dtype=scores.dtype).triu(1)
    return scores.softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["full", "full:backend=dense", "sliding_window:window=24"])
def test_exact_attention_is_faithful(variant: str, causal: bool, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    found = measure_distances(ea.create(variant), *qkv, ea.Mask(causal=causal))
    assert found.relative_error < 1e-10
    assert found.total_variation < 1e-10
    assert found.missed_mass < 1e-10
    assert found.cosine_similarity == pytest.approx(1)
    assert found.mean_value_error > 0.1


class MeanOfValues(ea.SoftmaxAttention):
    """Every visible key weighs the same."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return super().compute(torch.zeros_like(q), k, v, mask, **inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_the_mean_of_the_values_has_the_mean_value_error(causal: bool, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    found = measure_distances(MeanOfValues(), q, k, v, ea.Mask(causal=causal))
    assert found.relative_error == pytest.approx(found.mean_value_error)
    visible = torch.ones(N, N, dtype=torch.float64).tril() if causal else torch.ones(N, N, dtype=torch.float64)
    mean, exact = visible / visible.sum(-1, keepdim=True) @ v, _exact(q, k, causal=causal) @ v
    assert found.mean_value_error == pytest.approx(((mean - exact).norm() / exact.norm()).item())
    assert found.missed_mass == 0


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_misses_the_mass_outside_it(causal: bool, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    found = measure_distances(ea.create("sliding_window:window=3"), q, k, v, ea.Mask(causal=causal))
    i = torch.arange(N)
    outside = (i[:, None] - i).abs() > 3
    weights = _exact(q, k, causal=causal)
    missed = (weights * outside).sum(-1)
    assert found.missed_mass == pytest.approx(missed.mean().item())
    assert found.total_variation == pytest.approx(missed.mean().item())  # what is outside is given to what is inside
    inside = weights.masked_fill(outside, 0)
    out, exact = inside / inside.sum(-1, keepdim=True) @ v, weights @ v
    assert found.relative_error == pytest.approx(((out - exact).norm() / exact.norm()).item())
    assert found.cosine_similarity == pytest.approx(torch.cosine_similarity(out, exact, dim=-1).mean().item())


def test_uniform_weights_read_every_key(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    zero = torch.zeros_like(q)
    assert measure_distances(ea.create("full"), zero, k, v, ea.Mask()).effective_keys == pytest.approx(N)
    causal = measure_distances(ea.create("full"), zero, k, v, ea.Mask(causal=True)).effective_keys
    assert causal == pytest.approx((N + 1) / 2)  # row i reads i + 1 keys


def test_weights_on_a_single_key_read_one(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    _, _, v = qkv
    one_hot = torch.eye(N, dtype=torch.float64).expand(2, 4, N, N) * 100
    assert measure_distances(ea.create("full"), one_hot, one_hot, v, ea.Mask()).effective_keys == pytest.approx(1)


def test_grouped_heads_are_compared_with_their_own_keys(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    found = measure_distances(ea.create("gqa:kv_heads=2"), q, k[:, :2], v[:, :2], ea.Mask())
    assert found.relative_error < 1e-10
    assert found.total_variation < 1e-10


def test_padding_counts_for_nothing(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    mask = ea.Mask(key_lengths=torch.tensor([10, 10]))
    padded = asdict(measure_distances(ea.create("linear"), q, k, v, mask))
    cut = asdict(measure_distances(ea.create("linear"), q, k[:, :, :10], v[:, :, :10], ea.Mask()))
    assert padded == pytest.approx(cut)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=3", "strided:stride=4"])
def test_blocks_change_no_number(
    variant: str, causal: bool, qkv: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = qkv
    given_to = (ea.create(variant), q, k[:, :2], v[:, :2], ea.Mask(causal=causal))
    whole = asdict(measure_distances(*given_to))
    for module in (distances, exact):
        monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 8 * 2 * N * 5)
    monkeypatch.setattr(distances, "MIN_KEYS_PER_CALL", 7)
    assert asdict(measure_distances(*given_to)) == pytest.approx(whole, rel=1e-9, abs=1e-12)


# -- rows that are drawn ---------------------------------------------------------------------------------------------


@given(st.integers(distances.ALL_ROWS + 1, 50_000))
def test_a_block_is_drawn_in_every_stretch(n: int) -> None:
    places = distances._draw_row_blocks(n)
    assert sum(place.stop - place.start for place in places) == distances.ALL_ROWS
    for stretch, place in enumerate(places):
        first, end = (n * at // distances.N_SEGMENTS for at in (stretch, stretch + 1))
        assert first <= place.start < place.stop <= end
    assert places == distances._draw_row_blocks(n)


@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_drawn_rows_are_those_rows_alone(
    causal: bool, qkv: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distances, "ALL_ROWS", 8)
    monkeypatch.setattr(distances, "N_SEGMENTS", 4)
    monkeypatch.setattr(distances, "MIN_KEYS_PER_CALL", 5)
    q, k, v = qkv
    found = measure_distances(ea.create("sliding_window:window=3"), q, k, v, ea.Mask(causal=causal))
    i = torch.arange(N)
    outside = (_exact(q, k, causal=causal) * ((i[:, None] - i).abs() > 3)).sum(-1)
    rows = [row for place in distances._draw_row_blocks(N) for row in range(place.start, place.stop)]
    assert found.weight_rows == len(rows) == 8
    assert found.missed_mass == pytest.approx(outside[..., rows].mean().item())
    assert found.total_variation == pytest.approx(outside[..., rows].mean().item())
    assert outside[..., rows].mean().item() != pytest.approx(outside.mean().item(), rel=1e-3)


def test_all_rows_are_looked_at_where_queries_are_mixed(
    qkv: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    attn = ea.create("nystromformer:n_landmarks=4")
    whole = measure_distances(attn, *qkv, ea.Mask())
    monkeypatch.setattr(distances, "ALL_ROWS", 16)
    assert measure_distances(attn, *qkv, ea.Mask()) == whole
    assert whole.weight_rows == N


def test_what_weights_hold_does_not_grow_with_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (distances, exact):
        monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 2**17)
    monkeypatch.setattr(distances, "ALL_ROWS", 128)
    monkeypatch.setattr(distances, "MIN_KEYS_PER_CALL", 16)
    q, k, v = (torch.randn(1, 1, 1024, 8) for _ in range(3))
    mask, attn = ea.Mask(causal=True), ea.create("sliding_window:window=16")
    known = exact.ExactReference.compute(q, k, v, mask)
    found = measure_footprint(lambda: measure_distances(attn, q, k, v, mask, exact=known), device="cpu")
    assert 0 < (found.peak or 0) < 4 * 1024**2  # one matrix of weights


# -- heads, sinks, gradients -----------------------------------------------------------------------------------------


class Twisted(ea.SoftmaxAttention):
    """Exact attention times a factor for each head."""

    factors: tuple[float, ...] = (1.0,) * 4

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        factors = torch.tensor(self.factors, dtype=q.dtype).view(-1, 1, 1)
        return super().compute(q, k, v, mask, **inputs) * factors


@pytest.mark.parametrize(
    ("factors", "spread", "cosine"),
    [
        ((1.0, 1.0, 1.0, 1.0), 0.0, 1.0),
        ((3.0, 3.0, 3.0, 3.0), 0.0, 1.0),
        ((-1.0, -1.0, -1.0, -1.0), 0.0, -1.0),
        ((0.0, 0.0, 0.0, 0.0), 0.0, 0.0),
        ((0.0, 1.0, 1.0, 1.0), math.sqrt(3) / 4, None),
    ],
)
def test_heads_and_gradients_of_known_twists(
    factors: tuple[float, ...], spread: float, cosine: float | None, qkv: tuple[Tensor, Tensor, Tensor]
) -> None:
    attn = Twisted()
    attn.factors = factors
    found = measure_distances(attn, *qkv, ea.Mask(causal=True))
    assert found.spread_over_heads == pytest.approx(spread, abs=1e-9)
    if cosine is None:
        assert 0.5 < (found.gradient_cosine or 0) < 0.99
    else:
        assert found.gradient_cosine == pytest.approx(cosine)


def test_the_gradient_cosine_is_of_all_three_gradients_as_one(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    attn, mask, leaves = ea.create("linear"), ea.Mask(causal=True), [x.clone().requires_grad_() for x in qkv]
    upstream = exact.ExactReference.compute(*qkv, mask).upstream
    own, theirs = (
        torch.cat([x.flatten() for x in torch.autograd.grad(out, leaves, upstream)])
        for out in (attn(*leaves, mask), _exact(leaves[0], leaves[1], causal=True) @ leaves[2])
    )
    want = torch.cosine_similarity(own, theirs, dim=0).item()
    assert measure_distances(attn, *qkv, mask).gradient_cosine == pytest.approx(want)


class Fixed(Twisted):
    @property
    def traits(self) -> ea.Traits:
        return replace(super().traits, gradient=False)


def test_without_a_gradient_there_is_no_cosine(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    assert measure_distances(Fixed(), *qkv, ea.Mask()).gradient_cosine is None


def test_sinks_are_the_four_first_keys(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    found = measure_distances(ea.create("sliding_window:window=2"), torch.zeros_like(q), k, v, ea.Mask(causal=True))
    rows = range(1, N + 1)
    assert found.sink_mass == pytest.approx(sum(min(4, i) / i for i in rows) / N)
    # uniform over the row itself and two keys before it: the last row that sees a sink is the sixth
    assert found.own_sink_mass == pytest.approx((4 + 2 / 3 + 1 / 3) / N)


def test_fewer_keys_than_sinks(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    found = measure_distances(ea.create("full"), q, k[:, :, :3], v[:, :, :3], ea.Mask())
    assert (found.sink_mass, found.own_sink_mass) == (pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize(
    ("out", "reference", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0),
        ([0.0, 0.0], [3.0, 4.0], 1),
        ([3.0, 9.0], [3.0, 4.0], 1),
        ([3.0, 4.0], [0.0, 0.0], 5),
    ],
)
def test_the_relative_error_is_a_ratio_of_norms(out: list[float], reference: list[float], error: float) -> None:
    assert relative_error(torch.tensor(out), torch.tensor(reference)) == pytest.approx(error)
