"""The largest scores, and the blocks with the largest sums of weights."""

from __future__ import annotations

import pytest
import torch

import efficient_attn as ea


def test_as_many_keys_as_there_are_is_exact_attention() -> None:
    q, k, v = torch.randn(3, 2, 4, 130, 16, dtype=torch.float64)
    want = ea.create("full")(q, k, v, ea.Mask(causal=True))
    for spec in ("topk:keys=130", "block_topk:blocks=9:block_size=16"):
        torch.testing.assert_close(ea.create(spec)(q, k, v, ea.Mask(causal=True)), want)


def test_the_rows_of_a_loop_over_queries() -> None:
    """More queries than are computed together, grouped heads, and fewer visible keys than are selected."""
    q, k, v = torch.randn(1, 4, 150, 8), *torch.randn(2, 1, 2, 150, 8)
    for spec, size, count in (("topk:keys=7", 1, 7), ("block_topk:blocks=3:block_size=5", 5, 3)):
        out = ea.create(spec)(q, k, v, ea.Mask(causal=True))
        for head, row in ((0, 3), (1, 64), (2, 100), (3, 149)):
            scores = k[0, head // 2, : row + 1].double() @ q[0, head, row].double() / 8**0.5
            mass = [float(part.exp().sum()) for part in scores.split(size)]
            best = sorted(range(len(mass)), key=lambda block, mass=mass: -mass[block])[:count]
            seen = [j for j in range(row + 1) if j // size in best]
            want = scores[seen].softmax(0) @ v[0, head // 2, seen].double()
            torch.testing.assert_close(out[0, head, row].double(), want, atol=1e-5, rtol=0)


def test_all_keys_with_the_score_of_the_last_count() -> None:
    k, v = torch.ones(1, 1, 6, 4), torch.arange(6.0).view(1, 1, 6, 1)
    out = ea.create("topk:keys=2")(torch.ones(1, 1, 1, 4), k, v)
    torch.testing.assert_close(out, v.mean().view(1, 1, 1, 1))


@pytest.mark.parametrize("spec", ["topk:keys=9", "block_topk:blocks=3:block_size=16", "quest:page=16:pages=2"])
def test_compiled_code_selects_the_same_keys(spec: str) -> None:
    """With inductor, for a number of keys that is no multiple of a block."""
    q, k, v = torch.randn(3, 1, 2, 130, 8)
    attn, mask = ea.create(spec), ea.Mask(causal=True)
    torch.compiler.reset()
    got = torch.compile(lambda q, k, v: attn(q, k, v, mask), fullgraph=True)(q, k, v)
    torch.testing.assert_close(got, attn(q, k, v, mask), atol=1e-5, rtol=0)
