"""Caches that drop keys, compared with masks over all keys in float64."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import llama, make_ids
from torch import Tensor

import efficient_attn as ea
from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.integrations.evictions import (
    H2O,
    Eviction,
    SnapKV,
    Tova,
    attend_and_reduce,
    compute_kept_shares,
    fit,
)
from efficient_attn.integrations.state_cache import StateCache

RULES = [H2O(keys=5, recent=4), Tova(keys=9), SnapKV(keys=9, window=4, pool=3), SnapKV(keys=12, window=2, pool=1)]
PASSES = (40, 1, 1, 5, 1, 1, 1)
BATCH, HEADS, KV_HEADS, WIDTH = 2, 6, 2, 8


def _simulate(rule: Any, q: Tensor, k: Tensor, v: Tensor, passes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The outputs, and the keys alive at the end, ``[B, Hkv, M]``, by one mask over all keys for each query."""
    group, total = HEADS // KV_HEADS, k.shape[2]
    alive = torch.zeros(BATCH, KV_HEADS, total, dtype=torch.bool)
    sums, outputs, start = torch.zeros(BATCH, KV_HEADS, total, dtype=torch.float64), [], 0
    for number, size in enumerate(passes):
        end = start + size
        alive[:, :, start:end] = True
        weights = torch.zeros(BATCH, HEADS, size, total, dtype=torch.float64)
        for b in range(BATCH):
            for h in range(HEADS):
                for row in range(size):
                    seen = [j for j in range(start + row + 1) if alive[b, h // group, j]]
                    scores = k[b, h // group, seen] @ q[b, h, start + row] / WIDTH**0.5
                    weights[b, h, row, seen] = scores.softmax(0)
        outputs.append(torch.einsum("bhnm,bhme->bhne", weights, v.repeat_interleave(group, 1)))
        by_head = weights.unflatten(1, (KV_HEADS, group)).sum(2)  # over the heads of a group
        sums += by_head.sum(2)
        for b in range(BATCH):
            for h in range(KV_HEADS):
                present = [j for j in range(end) if alive[b, h, j]]
                if isinstance(rule, H2O):
                    values, count, recent = sums[b, h], rule.keys, rule.recent
                elif isinstance(rule, Tova):
                    values, count, recent = weights[b, :, -1].mean(0), rule.keys, 0
                elif number == 0:
                    last = by_head[b, h, -rule.window :].sum(0)
                    half = rule.pool // 2
                    last[end - rule.window :] = 0  # of the window's keys, which remain
                    values = torch.stack([last[max(j - half, 0) : j + half + 1].sum() for j in range(total)])
                    count, recent = rule.keys - rule.window, rule.window
                else:
                    continue
                if len(present) > count + recent:
                    older = present[: len(present) - recent]
                    kept = sorted(older, key=lambda j: (-float(values[j]), j))[:count]
                    alive[b, h, older] = False
                    alive[b, h, kept] = True
        start = end
    return torch.cat(outputs, 2), alive


@pytest.mark.parametrize("passes", [PASSES, (3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 6, 1), (1,) * 30])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_keep_the_keys_of_a_dense_simulation(rule: Eviction, passes: tuple[int, ...]) -> None:
    generator, total = torch.Generator().manual_seed(3), sum(passes)
    q = torch.randn(BATCH, HEADS, total, WIDTH, dtype=torch.float64, generator=generator)
    k, v = torch.randn(2, BATCH, KV_HEADS, total, WIDTH, dtype=torch.float64, generator=generator)
    want, alive = _simulate(rule, q, k, v, passes)
    attn, kept, outputs, start = ea.create("full"), None, [], 0
    for size in passes:
        now = slice(start, start + size)
        out, kept = attend_and_reduce(attn, rule, kept, q[:, :, now], k[:, :, now], v[:, :, now])
        outputs.append(out)
        start += size
    torch.testing.assert_close(torch.cat(outputs, 2), want)
    assert kept is not None
    assert torch.equal(torch.zeros_like(alive).scatter(2, kept.positions, value=True), alive)
    assert kept.keys.shape[2] == int(alive[0, 0].sum())


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_model_that_keeps_everything_generates_the_same_tokens(rule: Any) -> None:
    torch.manual_seed(0)
    model, ids = llama().eval(), make_ids(2)
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False}
    want = model.generate(ids, **options)
    ea.swap(model, "full")
    large = type(rule)(keys=100)
    assert torch.equal(model.generate(ids, past_key_values=StateCache(model, keep=large), **options), want)
    cache = StateCache(model, keep=rule)
    model.generate(ids, past_key_values=cache, **options)
    stored = cache.states[0].keys.shape[2]
    assert stored == (rule.keys + 19 if isinstance(rule, SnapKV) else 9)
    assert cache.get_seq_length() == ids.shape[1] + 19
    beams = model.generate(ids, past_key_values=StateCache(model, keep=large), num_beams=3, **options)
    assert torch.equal(beams, model.generate(ids, num_beams=3, **options))


def test_uses_that_are_not_supported_are_reported() -> None:
    torch.manual_seed(0)
    model, ids = llama().eval(), make_ids(2)
    with ea.swap(model, "linear"), pytest.raises(UnsupportedError, match=r"only exact attention \(full, gqa, mqa\)"):
        model.generate(ids, past_key_values=StateCache(model, keep=Tova()), max_new_tokens=2)
    ea.swap(model, "full")
    valid = torch.ones_like(ids)
    valid[0, :3] = 0
    with pytest.raises(UnsupportedError, match="drops keys has no padding"):
        model.generate(ids, attention_mask=valid, past_key_values=StateCache(model, keep=Tova()), max_new_tokens=2)
    with pytest.raises(UsageError, match="max_len=10"):
        model.generate(ids, past_key_values=StateCache(model, 10, keep=Tova()), max_new_tokens=2)
    for make, problem in (
        (lambda: H2O(keys=0), "keys"),
        (lambda: SnapKV(keys=32, window=32), "must be more than the window"),
        (lambda: SnapKV(pool=4), "must be odd"),
    ):
        with pytest.raises(UsageError, match=problem):
            make()


@pytest.mark.parametrize("rule", [H2O, Tova, SnapKV])
@pytest.mark.parametrize(("budget", "keys"), [("16", 16), ("7", 7), ("2KiB", 8), ("N/16", 16)])
def test_a_rule_fits_a_budget_of_keys_or_bytes(rule: Any, budget: str, keys: int) -> None:
    model = llama()  # 2 key-value heads of 16, 256 positions: 256 bytes a key and its value
    fitted = fit(rule, budget, model)
    ea.swap(model, "full")
    cache = StateCache(model, keep=fitted)
    with torch.inference_mode():
        model(make_ids(1, 40), past_key_values=cache, use_cache=True)
    assert [state.keys.shape[2] for state in cache.states] == [keys] * 2
    if budget.endswith("KiB"):
        held = cache.states[0].keys.nbytes + cache.states[0].values.nbytes
        assert held == 2048, "the bytes of a layer's keys and values"


def test_a_rule_of_too_few_keys_is_refused() -> None:
    with pytest.raises(UsageError, match="H2O: budget 1: H2O: recent"):
        fit(H2O, "1", llama())
    with pytest.raises(UsageError, match="Tova: budget 100B: it is less than one key"):
        fit(Tova, "100B", llama())


def test_shares_of_heads_that_keep_a_position() -> None:
    model = llama()
    ea.swap(model, "full")
    cache = StateCache(model, keep=H2O(keys=6, recent=4))
    with pytest.raises(UsageError, match="that has read a prompt"):
        compute_kept_shares(cache.states)
    with torch.inference_mode():
        for ids in make_ids(2, 30).split([24, 1, 5], dim=1):
            model(ids, past_key_values=cache, use_cache=True)
    shares = compute_kept_shares(cache.states)
    assert shares.shape == (2, 30)
    for layer, state in enumerate(cache.states):
        for position in range(30):
            held = (state.positions == position).any(-1).float().mean().item()
            assert shares[layer, position] == held
    assert shares[:, -4:].eq(1).all()
    assert shares.sum(1).tolist() == [10, 10]
