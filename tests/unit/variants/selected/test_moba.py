"""MoBA: the paper's selection, the kernel over lists of blocks, and steps that read only the selected blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.budget import Budget
from efficient_attn.kernels.softmax.block_lists import BlockInputs, BlockOptions, attend
from efficient_attn.variants.selected.moba import MoBA

DIMS = ea.Dims(heads=4, kv_heads=2, head_dim=16, value_dim=12)
CAUSAL = ea.Mask(causal=True)


def draw(n: int, m: int, seed: int = 0, width: int = 12) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n + m + seed)
    sizes = (2, 4, n, 16), (2, 2, m, 16), (2, 2, m, width)
    return [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]


def define(q: Tensor, k: Tensor, v: Tensor, *, block: int, topk: int, valid: Tensor | None = None) -> Tensor:
    """Query by query, with the blocks that the paper selects."""
    out, offset = q.new_zeros(*q.shape[:3], v.shape[3]), k.shape[2] - q.shape[2]
    for b in range(2):
        keep = torch.ones(k.shape[2], dtype=torch.bool) if valid is None else valid[b]
        for h in range(4):
            for row in range(q.shape[2]):
                position = row + offset
                own = position // block
                scores = {}
                for c in range(own):
                    keys = [j for j in range(c * block, (c + 1) * block) if keep[j]]
                    if keys:
                        scores[c] = float(q[b, h, row] @ k[b, h // 2, keys].mean(0))
                best = sorted(scores, key=lambda c: -scores[c])[: topk - 1]
                seen = [j for j in range(position + 1) if (j // block == own or j // block in best) and keep[j]]
                if seen:
                    weights = (k[b, h // 2, seen] @ q[b, h, row] / 4).softmax(0)
                    out[b, h, row] = weights @ v[b, h // 2, seen]
    return out


@pytest.mark.parametrize("backend", ["blocks", "dense"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (50, 50), (7, 50)])
@pytest.mark.parametrize(("block", "topk"), [(8, 3), (5, 2), (16, 1), (100, 4)])
def test_the_result_is_the_papers(block: int, topk: int, n: int, m: int, backend: str) -> None:
    q, k, v = draw(n, m)
    attn = ea.create("moba", block=block, topk=topk, dims=DIMS, backend=backend)
    torch.testing.assert_close(attn(q, k, v, CAUSAL), define(q, k, v, block=block, topk=topk), rtol=0, atol=1e-12)


def test_hidden_keys_count_in_no_mean() -> None:
    q, k, v = draw(60, 60)
    valid = torch.rand(2, 60, generator=torch.Generator().manual_seed(0)) < 0.5
    valid[:, 0] = True  # positions count from the first valid key
    valid[0, 8:24] = False  # two blocks without any
    got = ea.create("moba:block=8:topk=3", dims=DIMS)(q, k, v, ea.Mask(causal=True, key_mask=valid))
    torch.testing.assert_close(got, define(q, k, v, block=8, topk=3, valid=valid), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=15)
@given(n=st.integers(1, 80), start=st.integers(0, 40), size=st.integers(1, 30), count=st.integers(0, 3), data=st.data())
def test_the_kernel_and_its_gradients_equal_the_definition(
    n: int, start: int, size: int, count: int, data: st.DataObject
) -> None:
    """Lists of different lengths, with holes; hidden keys."""
    m, generator = start + n, torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    sizes = (3, 2, n, 8), (3, m, 8), (3, m, 8)
    q, k, v = (torch.randn(*s, generator=generator, dtype=torch.float64, requires_grad=True) for s in sizes)
    own = (torch.arange(n) + start) // size
    blocks = torch.rand(3, 2, n, max(int(own.max()), 1), generator=generator).argsort(-1)[..., :count]
    blocks = blocks.masked_fill((blocks >= own[:, None]) | (torch.rand(blocks.shape, generator=generator) < 0.2), -1)
    valid = torch.rand(3, m, generator=generator) < 0.8 if data.draw(st.booleans()) else None
    out = attend(BlockInputs(q, k, v, blocks, valid), BlockOptions(0.3, size, start))
    number = torch.arange(m) // size
    seen = ((blocks[..., None] == number).any(-2) | (own[:, None] == number)).tril(start)
    seen = seen if valid is None else seen & valid[:, None, None]
    scores = (q @ k[:, None].mT * 0.3).masked_fill(~seen, float("-inf"))
    weights = torch.where(seen.any(-1, keepdim=True), scores, 0).softmax(-1).masked_fill(~seen, 0)
    want = weights @ v[:, None]
    torch.testing.assert_close(out, want, rtol=0, atol=1e-12)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    for mine, theirs in zip(*(torch.autograd.grad((x * grad).sum(), (q, k, v)) for x in (out, want)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


def test_all_blocks_are_full_attention() -> None:
    q, k, v = draw(200, 200)
    got = ea.create("moba:block=16:topk=13", dims=DIMS)(q, k, v, CAUSAL)
    torch.testing.assert_close(got, ea.create("full", dims=DIMS)(q, k, v, CAUSAL), rtol=0, atol=1e-12)


def test_steps_read_only_the_selected_blocks() -> None:
    """Keys of other blocks are NaN, and no output is."""
    q, k, v = draw(64, 64)
    attn = ea.create("moba:block=8:topk=2", dims=DIMS)
    _, state = attn.step(q[:, :, :63], k[:, :, :63], v[:, :, :63], attn.init_state(2, 64, torch.float64))
    want, _ = attn.step(q[:, :, 63:], k[:, :, 63:], v[:, :, 63:], state)
    order = (q[:, :, 63].unflatten(1, (2, 2))[:, :, :, None] @ state.summaries[:, :, None].mT)[..., 0, :7].argmax(-1)
    for b in range(2):
        for head in range(2):
            for block in set(range(7)) - set(order[b, head].tolist()):
                state.values[b, head, 8 * block : 8 * block + 8] = float("nan")
    got, _ = attn.step(q[:, :, 63:], k[:, :, 63:], v[:, :, 63:], state.__class__(**{**vars(state), "length": 63}))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_budgets_and_bad_options() -> None:
    assert MoBA.fit(Budget(keys=1024, length=16384, head_dim=64, causal=True)) == {"block": 64, "topk": 16}
    assert ea.create("moba:block=4:topk=2").pairs(9, 9, True) == sum((1, 2, 3, 4, 5, 6, 7, 8, 5))
    for spec in ("moba:block=0", "moba:topk=0", "moba:topk=-1"):
        with pytest.raises(ea.UsageError):
            ea.create(spec)
