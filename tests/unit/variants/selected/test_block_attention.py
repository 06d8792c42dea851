"""Blocks of keys that a query selects by summaries of an author's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import efficient_attn as ea

CAUSAL = ea.Mask(causal=True)
SUMMARISED: list[int] = []


class FirstChannel(ea.BlockAttention):
    """Selects the blocks with the largest sum of the keys' first channel, whatever the query."""

    def __init__(self, *, block: int = 4, topk: int = 2) -> None:
        super().__init__(block=block, topk=topk)

    def summarise(self, keys: Tensor, valid: Tensor) -> Tensor:
        SUMMARISED.append(keys.shape[2])
        return keys[..., :1].double().sum(3)

    def score(self, q: Tensor, summaries: Tensor) -> Tensor:
        return summaries.mT.expand(-1, -1, q.shape[2], -1)


def draw(n: int, m: int, group: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    sizes = (2, 2 * group, n, 8), (2, 2, m, 8), (2, 2, m, 5)
    return [torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes]


def define(q: Tensor, k: Tensor, v: Tensor, block: int, topk: int) -> Tensor:
    """Query by query."""
    out, offset, group = q.new_zeros(*q.shape[:3], v.shape[3]), k.shape[2] - q.shape[2], q.shape[1] // k.shape[1]
    for b, h, row in torch.cartesian_prod(*(torch.arange(size) for size in q.shape[:3])).tolist():
        keys, values, position = k[b, h // group], v[b, h // group], row + offset
        sums = [float(keys[c * block : (c + 1) * block, 0].sum()) for c in range(position // block)]
        best = sorted(range(len(sums)), key=lambda c: -sums[c])[: topk - 1]
        seen = [j for j in range(position + 1) if j // block in (*best, position // block)]
        out[b, h, row] = (keys[seen] @ q[b, h, row] * 8**-0.5).softmax(0) @ values[seen]
    return out


@pytest.mark.parametrize("backend", ["blocks", "dense"])
@pytest.mark.parametrize(("block", "topk"), [(4, 2), (5, 3), (1, 4), (3, 1), (64, 2)])
@pytest.mark.parametrize(("n", "m"), [(30, 30), (4, 30), (1, 7)])
def test_the_selected_blocks_are_those_with_the_largest_scores(
    n: int, m: int, block: int, topk: int, backend: str
) -> None:
    attn = FirstChannel(block=block, topk=topk)
    attn.backend = backend
    q, k, v = draw(n, m)
    torch.testing.assert_close(attn(q, k, v, CAUSAL), define(q, k, v, block, topk), rtol=0, atol=1e-12)


@pytest.mark.parametrize("topk", [1, 2])
@pytest.mark.parametrize("splits", [(30,), (1,) * 30, (7, 1, 1, 3, 18), (12, 18)])
def test_steps_equal_the_definition_and_summarise_a_block_once(splits: tuple[int, ...], topk: int) -> None:
    attn, (q, k, v) = FirstChannel(topk=topk), draw(30, 30)
    state, rows, first = attn.init_state(2, 32, torch.float64), [], 0
    SUMMARISED.clear()
    for size in splits:
        at = slice(first, first + size)
        out, state = attn.step(q[:, :, at], k[:, :, at], v[:, :, at], state)
        rows.append(out)
        first += size
    torch.testing.assert_close(torch.cat(rows, 2), define(q, k, v, 4, topk), rtol=0, atol=1e-12)
    assert sum(SUMMARISED) <= 30 // 4 + 1, "one to know the width"
    assert (state.summaries.shape, state.summaries.dtype) == ((2, 2, 8, 1), torch.float64)


def test_selection_has_no_gradient_and_the_selected_keys_have() -> None:
    attn, (q, k, v) = FirstChannel(), draw(20, 20)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    grads = [torch.autograd.grad(f(*leaves).square().sum(), leaves) for f in (lambda *x: attn(*x, CAUSAL), _defined)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-11)


def _defined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    allowed = (define_rows(k)[:, :, None] > 0).repeat_interleave(3, 1)[:, :, 0]
    keys, values = (x.repeat_interleave(3, 1) for x in (k, v))
    return (q @ keys.mT * 8**-0.5).masked_fill(~allowed, -torch.inf).softmax(-1) @ values


def define_rows(k: Tensor) -> Tensor:
    """``[B, Hkv, N, N]``, 1 for the keys that a query sees."""
    n = k.shape[2]
    position = torch.arange(n)
    sums = k.detach()[..., 0].unflatten(2, (-1, 4)).sum(-1)
    own = position // 4
    hidden = sums[:, :, None].masked_fill(torch.arange(n // 4) >= own[:, None], -torch.inf)
    best = hidden.argmax(-1).masked_fill(own == 0, -1)
    seen = (position // 4 == best[..., None]) | (position // 4 == own[:, None])
    return (seen & (position <= position[:, None])).long()


def test_wrong_summaries_and_missing_parts_are_named() -> None:
    q, k, v = draw(8, 8)

    class Flat(FirstChannel):
        def summarise(self, keys: Tensor, valid: Tensor) -> Tensor:
            return keys.sum((3, 4))

    with pytest.raises(ea.UsageError, match=r"Flat: summarise must return \[B, Hkv, blocks, W\] = \[2, 2, 2, 'W'\]"):
        Flat()(q, k, v, CAUSAL)

    class Turned(FirstChannel):
        def score(self, q: Tensor, summaries: Tensor) -> Tensor:
            return super().score(q, summaries).mT

    with pytest.raises(ea.UsageError, match=r"Turned: score must return numbers .* = \[2, 2, 24, 2\], not"):
        Turned()(q, k, v, CAUSAL)
    with pytest.raises(ea.UnsupportedError, match="BlockAttention has no summaries"):
        ea.BlockAttention(block=4, topk=2)(q, k, v, CAUSAL)
    for sizes in ({"block": 0}, {"topk": 0}):
        with pytest.raises(ea.UsageError, match="must be at least 1"):
            FirstChannel(**sizes)
