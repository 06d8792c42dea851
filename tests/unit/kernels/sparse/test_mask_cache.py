"""Masks that are kept: by all that they depend on, and no more bytes than they may have."""

from __future__ import annotations

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.kernels.sparse.mask_cache import AdditiveMask, _MaskCache, make_additive_mask


def some(size: int) -> AdditiveMask:
    return AdditiveMask(torch.zeros(size), None)


def test_a_mask_is_made_once_and_the_oldest_go_first() -> None:
    made: list[str] = []
    kept = _MaskCache(limit=100)

    def ask(name: str, size: int = 10) -> None:
        kept.find(name, lambda: made.append(name) or some(size))

    for name in ("a", "b", "a", "c", "a", "b"):  # of 40 bytes each: two are kept
        ask(name)
    assert made == ["a", "b", "c", "b"]
    assert kept.bytes == 80
    ask("huge", 26)
    ask("huge", 26)
    assert made[4:] == ["huge", "huge"]
    assert kept.bytes == 80


def test_an_additive_mask_and_its_blind_rows() -> None:
    scores, blind = make_additive_mask(torch.tensor([[True, False], [False, False]]), torch.float16)
    assert scores is not None
    assert blind is not None
    assert (scores == torch.tensor([[0, float("-inf")], [float("-inf")] * 2])).all()
    assert (scores.dtype, blind.tolist()) == (torch.float16, [False, True])
    scores, blind = make_additive_mask(torch.tensor([[True, False], [False, True]]), torch.float32)
    assert scores is not None
    assert blind is None
    assert make_additive_mask(torch.ones(2, 2, dtype=torch.bool), torch.float32) == (None, None)


def test_what_inference_mode_made_can_be_saved_for_a_gradient() -> None:
    q = torch.randn(1, 2, 37, 8)

    def call(backend: str, *given: Tensor) -> Tensor:
        return ea.create("sliding_window:window=4", backend=backend)(*given, ea.Mask(causal=True))

    for backend in ("masked", "parts"):
        with torch.inference_mode():
            want = call(backend, q, q, q)
        leaf = q.clone().requires_grad_()
        out = call(backend, leaf, leaf, leaf)
        out.sum().backward()
        assert torch.equal(out, want)


def test_one_geometry_serves_groups_and_dtypes_in_turn() -> None:
    """Whatever was kept for another group, dtype or padding must not be taken."""
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
