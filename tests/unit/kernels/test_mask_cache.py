"""The cache of masks: its keys include everything that a mask depends on, and its size is bounded."""

from __future__ import annotations

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.mask_cache import _MaskCache
from efficient_attn.kernels.sparse.additive_masks import AdditiveMask, make_additive_mask


def make_mask(size: int) -> AdditiveMask:
    return AdditiveMask(torch.zeros(size), None)


def test_least_recently_used_masks_are_evicted() -> None:
    made: list[str] = []
    cache = _MaskCache(limit=100)

    def find(name: str, size: int = 10) -> None:
        cache.find(name, lambda: made.append(name) or make_mask(size))

    for name in ("a", "b", "a", "c", "a", "b"):  # 40 bytes each: the cache holds two
        find(name)
    assert made == ["a", "b", "c", "b"]
    assert cache.bytes == 80
    find("huge", 26)
    find("huge", 26)
    assert made[4:] == ["huge", "huge"]
    assert cache.bytes == 80


def test_make_additive_mask_marks_rows_without_keys() -> None:
    scores, blind = make_additive_mask(torch.tensor([[True, False], [False, False]]), torch.float16)
    assert scores is not None
    assert blind is not None
    assert (scores == torch.tensor([[0, float("-inf")], [float("-inf")] * 2])).all()
    assert (scores.dtype, blind.tolist()) == (torch.float16, [False, True])
    scores, blind = make_additive_mask(torch.tensor([[True, False], [False, True]]), torch.float32)
    assert scores is not None
    assert blind is None
    assert make_additive_mask(torch.ones(2, 2, dtype=torch.bool), torch.float32) == (None, None)


def test_masks_cached_in_inference_mode_allow_training() -> None:
    q = torch.randn(1, 2, 37, 8)

    def call(backend: str, *inputs: Tensor) -> Tensor:
        return ea.create("sliding_window:window=4", backend=backend)(*inputs, ea.Mask(causal=True))

    for backend in ("masked", "parts"):
        with torch.inference_mode():
            want = call(backend, q, q, q)
        leaf = q.clone().requires_grad_()
        out = call(backend, leaf, leaf, leaf)
        out.sum().backward()
        assert torch.equal(out, want)


def test_cached_masks_depend_on_groups_dtype_and_padding() -> None:
    """Masks cached for other groups, dtypes or padding must not be used."""
    for backend in ("parts", "masked"):
        for dtype in (torch.float64, torch.float32, torch.float64):
            for kv_heads in (1, 2, 4, 1):
                for mask in (ea.Mask(), ea.Mask(key_lengths=torch.tensor([3, 50])), ea.Mask(causal=True), ea.Mask()):
                    g = torch.Generator().manual_seed(kv_heads)
                    q, k, v = (torch.randn(2, h, 50, 8, generator=g, dtype=dtype) for h in (4, kv_heads, kv_heads))
                    got, want = (
                        ea.create("bigbird:window=3:n_global=2:block_size=8", backend=b)(q, k, v, mask)
                        for b in (backend, "dense")
                    )
                    torch.testing.assert_close(got, want)
