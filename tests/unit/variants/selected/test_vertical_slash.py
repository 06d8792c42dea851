"""Columns and diagonals with the largest weights of the last queries."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea

CAUSAL = ea.Mask(causal=True)


@pytest.mark.parametrize(("n", "queries"), [(150, 16), (20, 64)])
def test_rows_see_the_lines_that_a_loop_selects(n: int, queries: int) -> None:
    columns, diagonals, width = 5, 4, 8
    q, k, v = torch.randn(1, 4, n, width), *torch.randn(2, 1, 2, n, width)
    attn = ea.create("vertical_slash", columns=columns, diagonals=diagonals, queries=queries)
    out = attn(q, k, v, CAUSAL)
    for head in (0, 3):
        keys, values = k[0, head // 2].double(), v[0, head // 2].double()
        by_key, by_distance = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
        for i in range(max(n - queries, 0), n):
            weights = (keys[: i + 1] @ q[0, head, i].double() / width**0.5).softmax(0)
            by_key[: i + 1] += weights
            by_distance[: i + 1] += weights.flip(0)
        by_distance[0] = torch.inf
        best_keys = set(by_key.topk(columns).indices.tolist())
        best_distances = set(by_distance.topk(diagonals).indices.tolist())
        for i in range(n):
            seen = [j for j in range(i + 1) if j in best_keys or i - j in best_distances]
            want = (keys[seen] @ q[0, head, i].double() / width**0.5).softmax(0) @ values[seen]
            torch.testing.assert_close(out[0, head, i].double(), want, atol=1e-5, rtol=0)


def test_all_lines_are_exact_attention() -> None:
    q, k, v = torch.randn(3, 2, 4, 130, 16, dtype=torch.float64)
    want = ea.create("full")(q, k, v, CAUSAL)
    for columns, diagonals in ((130, 1), (1, 130)):
        attn = ea.create("vertical_slash", columns=columns, diagonals=diagonals)
        torch.testing.assert_close(attn(q, k, v, CAUSAL), want)
