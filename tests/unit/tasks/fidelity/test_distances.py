"""Distances from exact attention, compared with values that are computed directly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

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
def _isolated_registry() -> Iterator[None]:
    with tiny_suites.isolated_registry():
        yield


def _exact(q: Tensor, k: Tensor, *, causal: bool) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + torch.full((N, N), -torch.inf, dtype=scores.dtype).triu(1)
    return scores.softmax(-1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["full", "full:backend=dense", "sliding_window:window=24"])
def test_exact_attention_has_no_error(variant: str, causal: bool, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    measured = measure_distances(ea.create(variant), *qkv, ea.Mask(causal=causal))
    assert measured["relative_error"] < 1e-10
    assert measured["total_variation"] < 1e-10
    assert measured["missed_mass"] < 1e-10
    assert measured["cosine_similarity"] == pytest.approx(1)
    assert measured["mean_value_error"] > 0.1


class MeanOfValues(ea.SoftmaxAttention):
    """Gives every visible key the same weight."""

    def compute(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask, **inputs: Tensor) -> Tensor:
        return super().compute(torch.zeros_like(q), k, v, mask, **inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_the_mean_of_the_values_has_the_mean_value_error(causal: bool, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    measured = measure_distances(MeanOfValues(), q, k, v, ea.Mask(causal=causal))
    assert measured["relative_error"] == pytest.approx(measured["mean_value_error"])
    visible = torch.ones(N, N, dtype=torch.float64).tril() if causal else torch.ones(N, N, dtype=torch.float64)
    mean, exact = visible / visible.sum(-1, keepdim=True) @ v, _exact(q, k, causal=causal) @ v
    assert measured["mean_value_error"] == pytest.approx(((mean - exact).norm() / exact.norm()).item())
    assert measured["missed_mass"] == 0


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_misses_the_mass_outside_it(causal: bool, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    measured = measure_distances(ea.create("sliding_window:window=3"), q, k, v, ea.Mask(causal=causal))
    i = torch.arange(N)
    outside = (i[:, None] - i).abs() > 3
    weights = _exact(q, k, causal=causal)
    missed = (weights * outside).sum(-1)
    assert measured["missed_mass"] == pytest.approx(missed.mean().item())
    assert measured["total_variation"] == pytest.approx(missed.mean().item())  # the missed mass goes to the keys inside
    inside = weights.masked_fill(outside, 0)
    out, exact = inside / inside.sum(-1, keepdim=True) @ v, weights @ v
    assert measured["relative_error"] == pytest.approx(((out - exact).norm() / exact.norm()).item())
    assert measured["cosine_similarity"] == pytest.approx(torch.cosine_similarity(out, exact, dim=-1).mean().item())


def test_effective_keys_of_uniform_weights_are_all_keys(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    zero = torch.zeros_like(q)
    assert measure_distances(ea.create("full"), zero, k, v, ea.Mask())["effective_keys"] == pytest.approx(N)
    causal = measure_distances(ea.create("full"), zero, k, v, ea.Mask(causal=True))["effective_keys"]
    assert causal == pytest.approx((N + 1) / 2)  # row i reads i + 1 keys


def test_effective_keys_of_one_hot_weights_are_one(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    _, _, v = qkv
    one_hot = torch.eye(N, dtype=torch.float64).expand(2, 4, N, N) * 100
    assert measure_distances(ea.create("full"), one_hot, one_hot, v, ea.Mask())["effective_keys"] == pytest.approx(1)


def test_grouped_heads_are_compared_with_their_own_keys(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    measured = measure_distances(ea.create("gqa:kv_heads=2"), q, k[:, :2], v[:, :2], ea.Mask())
    assert measured["relative_error"] < 1e-10
    assert measured["total_variation"] < 1e-10


def test_padding_is_ignored(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    mask = ea.Mask(key_lengths=torch.tensor([10, 10]))
    padded = measure_distances(ea.create("linear"), q, k, v, mask)
    cut = measure_distances(ea.create("linear"), q, k[:, :, :10], v[:, :, :10], ea.Mask())
    assert padded == pytest.approx(cut)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", ["full", "linear", "sliding_window:window=3", "strided:stride=4"])
def test_block_size_does_not_change_distances(
    variant: str, causal: bool, qkv: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = qkv
    args = (ea.create(variant), q, k[:, :2], v[:, :2], ea.Mask(causal=causal))
    whole = measure_distances(*args)
    for module in (distances, exact):
        monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 8 * 2 * N * 5)
    monkeypatch.setattr(distances, "MIN_KEYS_PER_CALL", 7)
    assert measure_distances(*args) == pytest.approx(whole, rel=1e-9, abs=1e-12)


# -- sampled rows ----------------------------------------------------------------------------------------------------


@given(st.integers(distances.ALL_ROWS + 1, 50_000))
def test_each_segment_has_a_block_of_sampled_rows(n: int) -> None:
    blocks = distances._draw_row_blocks(n)
    assert sum(block.stop - block.start for block in blocks) == distances.ALL_ROWS
    for segment, block in enumerate(blocks):
        first, end = (n * at // distances.N_SEGMENTS for at in (segment, segment + 1))
        assert first <= block.start < block.stop <= end
    assert blocks == distances._draw_row_blocks(n)


@pytest.mark.parametrize("causal", [False, True])
def test_weight_distances_use_only_the_sampled_rows(
    causal: bool, qkv: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distances, "ALL_ROWS", 8)
    monkeypatch.setattr(distances, "N_SEGMENTS", 4)
    monkeypatch.setattr(distances, "MIN_KEYS_PER_CALL", 5)
    q, k, v = qkv
    measured = measure_distances(ea.create("sliding_window:window=3"), q, k, v, ea.Mask(causal=causal))
    i = torch.arange(N)
    outside = (_exact(q, k, causal=causal) * ((i[:, None] - i).abs() > 3)).sum(-1)
    rows = [row for block in distances._draw_row_blocks(N) for row in range(block.start, block.stop)]
    assert measured["weight_rows"] == len(rows) == 8
    assert measured["missed_mass"] == pytest.approx(outside[..., rows].mean().item())
    assert measured["total_variation"] == pytest.approx(outside[..., rows].mean().item())
    assert outside[..., rows].mean().item() != pytest.approx(outside.mean().item(), rel=1e-3)


def test_all_rows_are_used_if_queries_are_mixed(
    qkv: tuple[Tensor, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    attn = ea.create("nystromformer:n_landmarks=4")
    whole = measure_distances(attn, *qkv, ea.Mask())
    monkeypatch.setattr(distances, "ALL_ROWS", 16)
    assert measure_distances(attn, *qkv, ea.Mask()) == whole
    assert whole["weight_rows"] == N


@pytest.mark.sampled(6)
def test_memory_stays_below_one_matrix_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (distances, exact):
        monkeypatch.setattr(module, "MAX_BLOCK_BYTES", 2**17)
    monkeypatch.setattr(distances, "ALL_ROWS", 128)
    monkeypatch.setattr(distances, "MIN_KEYS_PER_CALL", 16)
    q, k, v = (torch.randn(1, 1, 1024, 8) for _ in range(3))
    mask, attn = ea.Mask(causal=True), ea.create("sliding_window:window=16")
    reference = exact.compute_exact(q, k, v, mask)
    footprint = measure_footprint(lambda: measure_distances(attn, q, k, v, mask, exact=reference), device="cpu")
    working = (footprint.peak or 0) - (footprint.lasting or 0)  # without the plans of the pattern
    assert 0 < working < 4 * 1024**2  # the size of one matrix of weights


# -- heads, sinks, gradients -----------------------------------------------------------------------------------------


class ScaledHeads(ea.SoftmaxAttention):
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
def test_spread_and_gradient_cosine_of_scaled_heads(
    factors: tuple[float, ...], spread: float, cosine: float | None, qkv: tuple[Tensor, Tensor, Tensor]
) -> None:
    attn = ScaledHeads()
    attn.factors = factors
    measured = measure_distances(attn, *qkv, ea.Mask(causal=True))
    assert measured["spread_over_heads"] == pytest.approx(spread, abs=1e-9)
    if cosine is None:
        assert 0.5 < (measured["gradient_cosine"] or 0) < 0.99
    else:
        assert measured["gradient_cosine"] == pytest.approx(cosine)


def test_gradient_cosine_uses_concatenated_gradients(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    attn, mask, leaves = ea.create("linear"), ea.Mask(causal=True), [x.clone().requires_grad_() for x in qkv]
    upstream = exact.compute_exact(*qkv, mask).upstream
    actual, expected = (
        torch.cat([x.flatten() for x in torch.autograd.grad(out, leaves, upstream)])
        for out in (attn(*leaves, mask), _exact(leaves[0], leaves[1], causal=True) @ leaves[2])
    )
    cosine = torch.cosine_similarity(actual, expected, dim=0).item()
    assert measure_distances(attn, *qkv, mask)["gradient_cosine"] == pytest.approx(cosine)


class WithoutGradient(ScaledHeads):
    @property
    def traits(self) -> ea.Traits:
        return replace(super().traits, gradient=False)


def test_gradient_cosine_is_none_without_a_gradient(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    assert measure_distances(WithoutGradient(), *qkv, ea.Mask())["gradient_cosine"] is None


def test_sinks_are_the_first_four_keys(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    measured = measure_distances(ea.create("sliding_window:window=2"), torch.zeros_like(q), k, v, ea.Mask(causal=True))
    rows = range(1, N + 1)
    assert measured["sink_mass"] == pytest.approx(sum(min(4, i) / i for i in rows) / N)
    # uniform over the row itself and two keys before it: the last row that sees a sink is the sixth
    assert measured["own_sink_mass"] == pytest.approx((4 + 2 / 3 + 1 / 3) / N)


def test_sink_mass_is_one_with_fewer_keys_than_sinks(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v = qkv
    measured = measure_distances(ea.create("full"), q, k[:, :, :3], v[:, :, :3], ea.Mask())
    assert (measured["sink_mass"], measured["own_sink_mass"]) == (pytest.approx(1), pytest.approx(1))


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
