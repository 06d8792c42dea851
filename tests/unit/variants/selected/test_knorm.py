"""The last keys and those of the smallest norm, against a cache that drops one key at a time."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea

CAUSAL = ea.Mask(causal=True)


@pytest.mark.parametrize(("window", "keys", "n"), [(3, 4, 200), (1, 1, 70), (70, 5, 150)])
def test_rows_are_those_of_a_cache_that_drops_the_largest_norm(window: int, keys: int, n: int) -> None:
    q, k, v = torch.randn(1, 4, n, 8), *torch.randn(2, 1, 2, n, 8)
    k[:, :, 5:9] = k[:, :, 4:5]  # equal norms: the first remain
    attn = ea.create("knorm", window=window, keys=keys)
    out = attn(q, k, v, CAUSAL)
    for head in (0, 3):
        rows, kept = k[0, head // 2].double(), list[int]()
        norms = rows.norm(dim=1).tolist()
        for i in range(n):
            if (left := i - window) >= 0:
                kept = sorted([*kept, left], key=lambda j: (norms[j], j))[:keys]
            seen = [*kept, *range(max(i - window + 1, 0), i + 1)]
            want = (rows[seen] @ q[0, head, i].double() / 8**0.5).softmax(0) @ v[0, head // 2, seen].double()
            torch.testing.assert_close(out[0, head, i].double(), want, atol=1e-5, rtol=0)


def test_a_state_has_as_many_positions_as_are_kept() -> None:
    attn = ea.create("knorm:window=8:keys=24", dims=ea.Dims(heads=4, kv_heads=2, head_dim=16))
    sizes = {ea.state_bytes(attn.init_state(1, n)) for n in (32, 1000, 10**6)}
    assert sizes == {2 * 2 * 32 * 16 * 4}
    state = attn.init_state(1, 500)
    for x in torch.randn(500, 1, 2, 1, 16):
        state = attn.absorb(x, x, state)
    assert ea.state_bytes(state) in sizes


def test_a_budget_of_everything_is_exact_attention() -> None:
    q, k, v = torch.randn(3, 2, 4, 130, 16, dtype=torch.float64)
    want = ea.create("full")(q, k, v, CAUSAL)
    torch.testing.assert_close(ea.create("knorm:window=30:keys=100")(q, k, v, CAUSAL), want)
