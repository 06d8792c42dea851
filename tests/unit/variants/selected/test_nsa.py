"""NSA: the paper's three branches, flash-linear-attention's plain forms, and steps that read what they select."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.budget import Budget
from efficient_attn.peers.hosting import load_fla_operations
from efficient_attn.variants.selected.nsa import NSA

CAUSAL = ea.Mask(causal=True)


def draw(n: int, m: int, *, heads: int = 4, kv_heads: int = 2, batch: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(n + m)
    sizes = {
        "q": (batch, heads, n, 16),
        "k": (batch, kv_heads, m, 16),
        "v": (batch, kv_heads, m, 12),
        "gates": (batch, heads, n, 3),
    }
    return {name: torch.randn(*size, generator=generator, dtype=torch.float64) for name, size in sizes.items()}


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((k @ q) / 4).softmax(0) @ v if len(k) else v.new_zeros(v.shape[-1])


def define(
    q: Tensor, k: Tensor, v: Tensor, gates: Tensor, *, block: int, topk: int, window: int, valid: Tensor
) -> Tensor:
    """Query by query, of one row of a batch and one key-value head: ``q [G, N, D]``, ``k, v [M, ..]``."""
    (group, n, _), m = q.shape, len(k)
    out = q.new_zeros(group, n, v.shape[1])
    members = [[j for j in range(c, min(c + block, m)) if valid[j]] for c in range(0, m, block)]
    for row in range(n):
        position = row + m - n
        own = position // block
        past = [c for c in range(len(members)) if (c + 1) * block - 1 <= position and members[c]]
        means = torch.stack([k[members[c]].mean(0) for c in past]) if past else k[:0]
        value_means = torch.stack([v[members[c]].mean(0) for c in past]) if past else v[:0]
        mass = torch.stack([(means @ q[g, row] / 4).softmax(0) for g in range(group)]).sum(0).tolist()
        ranked = sorted(zip(past, mass, strict=True), key=lambda pair: -pair[1])
        first = [c for c in dict.fromkeys((0, own - 1)) if 0 <= c < own and members[c]]
        best = [*first, *(c for c, _ in ranked if c not in (*first, own))][: topk - 1]
        selected = [j for c in (own, *best) for j in members[c] if j <= position]
        near = [j for j in range(max(position - window, 0), position + 1) if valid[j]]
        for g in range(group):
            branches = attend(q[g, row], means, value_means), *(attend(q[g, row], k[x], v[x]) for x in (selected, near))
            out[g, row] = sum(gate * branch for gate, branch in zip(gates[g, row], branches, strict=True))
    return out


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (50, 50), (7, 50)])
@pytest.mark.parametrize(("block", "topk", "window"), [(8, 4, 9), (5, 3, 0), (4, 1, 60), (16, 2, 3), (100, 4, 20)])
def test_the_result_is_the_papers(block: int, topk: int, window: int, n: int, m: int, holes: bool) -> None:
    call = draw(n, m)
    valid = torch.rand(2, m, generator=torch.Generator().manual_seed(1)) < (0.6 if holes else 2)
    valid[:, 0] = True  # positions count from the first valid key
    valid[0, 8:24] &= not holes  # two blocks without any
    mask = ea.Mask(causal=True, key_mask=valid) if holes else CAUSAL
    attn = ea.create(f"nsa:block={block}:topk={topk}:window={window}")
    got = attn(call["q"], call["k"], call["v"], mask, gates=call["gates"])
    for b in range(2):
        for head in range(2):
            heads = slice(2 * head, 2 * head + 2)
            q, k, v, gates = call["q"][b, heads], call["k"][b, head], call["v"][b, head], call["gates"][b, heads]
            want = define(q, k, v, gates, block=block, topk=topk, window=window, valid=valid[b])
            torch.testing.assert_close(got[b, heads], want, rtol=0, atol=1e-12)


def test_each_gate_scales_its_branch() -> None:
    call, attn = draw(90, 90), ea.create("nsa:block=8:topk=3:window=9")
    q, k, v, gates = call.values()
    alone = [attn(q, k, v, CAUSAL, gates=torch.eye(3, dtype=q.dtype)[i].expand(2, 4, 90, 3)) for i in range(3)]
    want = (gates[..., None, :].expand(2, 4, 90, 12, 3) * torch.stack(alone, -1)).sum(-1)
    torch.testing.assert_close(attn(q, k, v, CAUSAL, gates=gates), want, rtol=0, atol=1e-12)
    window = ea.create("sliding_window:window=9")(q, k, v, CAUSAL)
    torch.testing.assert_close(alone[2], window, rtol=0, atol=1e-12)


def test_it_equals_the_plain_forms_of_flash_linear_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its compression, selection and selected softmax; these compute in float32, and take groups of 16 heads."""
    pytest.importorskip("einops")
    for name, members in {
        "fla.ops.utils": ["prepare_chunk_offsets"],
        "fla.ops.utils.pooling": ["mean_pooling"],
    }.items():
        stub = ModuleType(name)  # which need Triton, and which these forms do not call without `cu_seqlens`
        vars(stub).update(dict.fromkeys(members))
        monkeypatch.setitem(sys.modules, name, stub)
    fla = load_fla_operations("nsa", "nsa")
    call = draw(100, 100, heads=32, kv_heads=2)
    q, k, v, gates = (x.float() for x in call.values())
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    means = [x[:, :96].unflatten(1, (12, 8)).mean(2) for x in rows[1:]]
    compressed, _ = fla.naive_nsa_compression(rows[0], *means, block_size=8, scale=0.25)
    partial = [torch.cat([x, y[:, 96:].mean(1, keepdim=True)], 1) for x, y in zip(means, rows[1:], strict=True)]
    indices = fla.naive_nsa_topk(rows[0], partial[0], block_counts=5, block_size=8, scale=0.25)
    selected = fla.naive_nsa_selection(rows[0], rows[1], rows[2], indices, block_size=8, scale=0.25)
    want = gates[..., :1] * compressed.transpose(1, 2) + gates[..., 1:2] * selected.transpose(1, 2)
    gates[..., 2] = 0
    got = ea.create("nsa:block=8:topk=5:window=3")(q, k, v, CAUSAL, gates=gates)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6)


def test_steps_read_only_what_they_select() -> None:
    """Keys and values of other blocks are NaN, and no output is."""
    call, attn = (
        draw(64, 64),
        ea.create("nsa:block=8:topk=3:window=5", dims=ea.Dims(heads=4, kv_heads=2, head_dim=16, value_dim=12)),
    )
    q, k, v, gates = call.values()

    def step(rows: list[Tensor], state: Any, gates: Tensor) -> tuple[Tensor, Any]:
        q, k, v = rows
        return attn.step(q, k, v, state, gates=gates)

    past, last = ([x[:, :, part] for x in (q, k, v)] for part in (slice(63), slice(63, 64)))
    _, state = step(past, attn.init_state(2, 64, torch.float64), gates[:, :, :63])
    want, _ = step(last, state, gates[:, :, 63:])
    _, state = step(past, attn.init_state(2, 64, torch.float64), gates[:, :, :63])
    for rows in (state.keys, state.values):
        rows[:, :, 8:48] = float("nan")  # blocks 0, 6 and 7 are the first, the one before, and the own one
    got, _ = step(last, state, gates[:, :, 63:])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_budgets_and_bad_options() -> None:
    budget = Budget(keys=1024, length=16384, head_dim=64, causal=True)
    assert NSA.fit(budget) == {"block": 64, "topk": 8, "window": 511}
    with pytest.raises(ea.UsageError, match="the budget 1"):
        NSA.fit(Budget(keys=1, length=100, head_dim=64, causal=True))
    for spec in ("nsa:block=0", "nsa:topk=0", "nsa:window=-1"):
        with pytest.raises(ea.UsageError, match=r"nsa: .* must be at least"):
            ea.create(spec)
