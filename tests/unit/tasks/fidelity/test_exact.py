"""Exact attention in blocks, compared with autograd through the dense implementation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from efficient_attn.contract.mask import Mask
from efficient_attn.instruments.memory import measure_footprint
from efficient_attn.kernels.dense import expand_heads, softmax_attention
from efficient_attn.tasks.fidelity import exact
from efficient_attn.tasks.fidelity.exact import compute_exact

N, M = 21, 30
MASKS = {
    "everything": Mask(),
    "causal": Mask(causal=True),
    "some see no key": Mask(causal=True, query_start=-4),
    "padded": Mask(key_lengths=torch.tensor([9, M]), query_lengths=torch.tensor([N, 7])),
    "holes": Mask(causal=True, key_mask=torch.arange(2 * M).view(2, M) % 3 > 0),
}


def draw(n: int = N, m: int = M, *, heads: int = 4, kv_heads: int = 2, batch: int = 2) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    sizes = (heads, n), (kv_heads, m), (kv_heads, m)
    return tuple(torch.randn(batch, *size, 8, generator=generator, dtype=torch.float64) for size in sizes)


@pytest.mark.parametrize("block", [8, 8 * 2 * M * 5, 2**25], ids=["a row", "five rows", "all"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_output_and_gradients_match_dense_attention(mask: Mask, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MAX_BLOCK_BYTES", block)
    q, k, v = draw()
    reference, leaves = compute_exact(q, k, v, mask), [x.requires_grad_() for x in (q, k, v)]
    dense_out = softmax_attention(*leaves, mask.dense(N, M))
    torch.testing.assert_close(reference.out, dense_out)
    for actual, expected in zip(
        reference.gradients, torch.autograd.grad(dense_out, leaves, reference.upstream), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_block_size_does_not_change_statistics(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compute_exact(*draw(), mask)
    monkeypatch.setattr(exact, "MAX_BLOCK_BYTES", 8 * 2 * M * 3)
    parts = compute_exact(*draw(), mask)
    for name in ("mean_value_error", "effective_keys", "sink_mass"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-12)
    torch.testing.assert_close(parts.lse, whole.lse)


def test_partial_weights_are_a_slice_of_all_weights() -> None:
    q, k, v = draw()
    mask = Mask(causal=True)
    reference = compute_exact(q, k, v, mask)
    scores = q @ expand_heads(k, 4).mT / math.sqrt(8)
    weights = scores.masked_fill(~mask.dense(N, M), -torch.inf).softmax(-1)
    part = (slice(1, 3), slice(4, 11), slice(5, 28))
    torch.testing.assert_close(reference.compute_weights(q, k, mask, *part), weights[:, part[0], part[1], part[2]])


def test_the_upstream_gradient_is_deterministic() -> None:
    first, second = (compute_exact(*draw(), Mask()).upstream for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.sampled(6)
def test_memory_does_not_grow_with_the_number_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MAX_BLOCK_BYTES", 2**17)

    def peak(n: int) -> int:
        inputs = draw(n, n, heads=3, kv_heads=1, batch=1)
        return measure_footprint(lambda: compute_exact(*inputs, Mask(causal=True)), device="cpu").peak or 0

    short, long = peak(256), peak(1024)
    assert long < 8 * 1024**2  # the size of one matrix of one head
    assert long - short < 20 * 8 * 8 * 3 * 768  # outputs and gradients of every row
