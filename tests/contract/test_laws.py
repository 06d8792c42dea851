"""Properties of attention independent of the implementation: order of positions, scale of scores, random vectors."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.shapes import Dims
from efficient_attn.results.stats import estimate_exponent
from efficient_attn.testing import Subject

subject = cache(Subject)
N, WIDTH, HEADS = 40, 32, 4
WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
UNORDERED = (
    "full",
    "cosine",
    "linear",
    "relu_linear",
    "taylor",
    "performer",
)  # the conformance tests cover all that declare it
ORDERED = [
    *("sliding_window:window=3", "dilated_window:window=3", "strided:stride=8", "fixed:stride=8:summary=2"),
    *("cosformer", "linformer:rank=8"),
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def change_by_order(spec: str) -> float:
    """The largest change of the output if keys and values are permuted together."""
    attn = subject(spec).make(subject(spec).shape(N))
    call = subject(spec).draw(subject(spec).shape(N), dtype=torch.float64)
    order = torch.randperm(N, generator=seeded(5))
    want = call.run(attn)
    return (call.keys(order).run(attn) - want).abs().max().item()


# -- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", UNORDERED)
def test_mechanisms_without_positions_ignore_the_order_of_keys(spec: str) -> None:
    assert change_by_order(spec) < 1e-10


@pytest.mark.parametrize("spec", ORDERED)
def test_positional_mechanisms_depend_on_the_order_of_keys(spec: str) -> None:
    assert change_by_order(spec) > 1e-3


@pytest.mark.parametrize("spec", ["full", "gqa:kv_heads=2", "cosine", "linear", "taylor", "performer"])
def test_self_attention_without_positions_is_permutation_equivariant(spec: str) -> None:
    layer = ea.MultiHeadAttention(WIDTH, HEADS, variant=spec).double()
    x, order = draw(2, N, WIDTH), torch.randperm(N, generator=seeded(1))
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["sliding_window:window=3", "cosformer"])
def test_self_attention_with_positions_is_not_permutation_equivariant(spec: str) -> None:
    layer = ea.MultiHeadAttention(WIDTH, HEADS, variant=spec, max_len=N).double()
    x, order = draw(2, N, WIDTH), torch.randperm(N, generator=seeded(1))
    assert (layer(x[:, order]) - layer(x)[:, order]).abs().max() > 1e-3


# -- scale ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_variance_of_scores_is_d_unscaled_and_one_scaled(width: int) -> None:
    q, k = draw(2000, width, seed=1), draw(2000, width, seed=2)
    scores = (q * k).sum(-1)  # independent pairs: the standard error of the variance is about sqrt(2 / count)
    assert abs(scores.var() / width - 1) < 0.15
    assert abs((scores / width**0.5).var() - 1) < 0.15
    assert abs(scores.mean()) < 4 * (width / 2000) ** 0.5


@pytest.mark.parametrize("width", WIDTHS)
def test_random_unit_vectors_are_nearly_orthogonal(width: int) -> None:
    """Their dot products have mean 0 and variance 1/n."""
    count = 4000
    one, other = (torch.nn.functional.normalize(draw(count, width, seed=s), dim=-1) for s in (1, 2))
    products = (one * other).sum(-1)
    assert abs(products.mean()) < 4 * (width * count) ** -0.5
    assert abs(products.var() * width - 1) < 4 * (2 / count) ** 0.5


def gradient_norms(spec: str, width: int) -> tuple[float, float]:
    """Median norms of the gradients of queries and of keys, for a random output gradient."""
    attn = ea.create(spec, dims=Dims(heads=8, head_dim=width)).double()
    q, k = (draw(8, 8, 32, width, seed=s).requires_grad_() for s in (1, 2))
    v, weights = draw(8, 8, 32, 16, seed=3), draw(8, 8, 32, 16, seed=4)
    by_q, by_k = torch.autograd.grad(attn(q, k, v), (q, k), weights)
    return by_q.norm(dim=-1).median().item(), by_k.norm(dim=-1).median().item()


def test_gradients_of_unscaled_scores_vanish_with_width() -> None:
    """Scaled scores have gradients independent of the width. Unscaled, one key has nearly all weight, and the gradients
    of most queries and keys vanish. Hence the median: where two keys have similar scores, gradients stay large."""
    slopes = {
        spec: [
            estimate_exponent(WIDTHS, norms).value
            for norms in zip(*(gradient_norms(spec, d) for d in WIDTHS), strict=True)
        ]
        for spec in ("full", "dot")
    }
    assert all(abs(slope) < 0.05 for slope in slopes["full"])
    by_q, by_k = slopes["dot"]
    assert by_q < -1
    assert by_k < -0.2
    assert gradient_norms("dot", 1024)[0] < gradient_norms("full", 1024)[0] / 50
