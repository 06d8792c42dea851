"""Fidelity against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

import planted
import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.instruments.distance import relative_error
from efficient_attn.tasks.distances import measure_distances

N = 24


@pytest.fixture
def qkv() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, N, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    return 2 * q, k, v


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with planted.undone():
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
