"""Pages of keys and the bounds of their scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import efficient_attn as ea
from efficient_attn.kernels.pages import LONG_CALL, Pages

CAUSAL = ea.Mask(causal=True)


@given(seed=st.integers(0, 10**6), size=st.integers(1, 9), m=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_no_score_of_a_page_is_larger_than_its_bound(seed: int, size: int, m: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, 3, n, 6, dtype=torch.float64, generator=generator) for n in (5, m))
    valid = torch.rand(2, m, generator=generator) < 0.7
    bounds = Pages.of(k, size, valid).bound(q)
    scores = (q @ k.mT).masked_fill(~valid[:, None, None], -torch.inf)
    for page, part in enumerate(scores.split(size, -1)):
        assert bool((part.amax(-1) <= bounds[..., page] + 1e-12).all())
        assert torch.equal(bounds[..., page].isinf(), part.amax(-1).isinf())


def _loop(q: Any, k: Any, v: Any, head: int, row: int, page: int, pages: int) -> Any:
    """One row: the own page, and the earlier ones with the largest bounds."""
    query, keys, values = q[0, head, row].double(), k[0, head // 2].double(), v[0, head // 2].double()
    own = row // page
    parts = keys[: own * page].unflatten(0, (own, page))
    bounds = [float(torch.maximum(query * part.amin(0), query * part.amax(0)).sum()) for part in parts]
    chosen = sorted(range(own), key=lambda c: -bounds[c])[:pages]
    seen = [j for j in range(row + 1) if j // page in (*chosen, own)]
    return (keys[seen] @ query / 8**0.5).softmax(0) @ values[seen]


@pytest.mark.parametrize("n", [63, 600])
def test_rows_read_their_own_page_and_the_best_earlier_ones(n: int) -> None:
    """Below and above the length from which only the selected keys are read."""
    page, pages = 4, 3
    assert (n > LONG_CALL * (pages + 1) * page) == (n == 600)
    q, k, v = torch.randn(1, 4, n, 8), *torch.randn(2, 1, 2, n, 8)
    attn = ea.create("quest", page=page, pages=pages)
    out = attn(q, k, v, CAUSAL)
    for head, row in ((0, 0), (1, 13), (2, 44), (3, n - 1), (0, n - 7)):
        want = _loop(q, k, v, head, row, page, pages)
        torch.testing.assert_close(out[0, head, row].double(), want, atol=1e-5, rtol=0)


def test_all_pages_are_exact_attention() -> None:
    q, k, v = torch.randn(3, 2, 4, 130, 16, dtype=torch.float64)
    attn = ea.create("quest:page=16:pages=8")
    torch.testing.assert_close(attn(q, k, v, CAUSAL), ea.create("full")(q, k, v, CAUSAL))


def test_a_state_stores_all_keys_and_the_bounds_of_pages() -> None:
    dims = ea.Dims(heads=4, kv_heads=2, head_dim=8)
    sizes = [
        ea.state_bytes(ea.create(spec, dims=dims).init_state(1, 320, torch.float32))
        for spec in ("full", "quest:page=16")
    ]
    assert sizes[1] == sizes[0] * (1 + 1 / 16)


def test_a_step_reads_the_bounds_and_the_selected_pages_only() -> None:
    """Keys of other pages may change without an effect, which is not so for a kernel that computes all scores."""
    page, pages, n = 4, 2, 200
    attn = ea.create("quest", page=page, pages=pages, dims=ea.Dims(heads=1, kv_heads=1, head_dim=8))
    q, k, v = torch.randn(3, 1, 1, n, 8)
    state = attn.absorb(k[:, :, :-1], v[:, :, :-1], attn.init_state(1, n))
    bounds = state.pages.bound(q[:, :, -1:])[0, 0, 0, : (n - 1) // page]
    best = bounds.topk(pages).indices.tolist()
    hidden = [j for j in range(n - page) if j // page not in best]
    state.keys[:, :, hidden] = torch.nan
    out, _ = attn.step(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], state)
    assert bool(out.isfinite().all())
