"""Budgets, and the options that `fit` selects: for all mechanisms, close to the budget and within it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import efficient_attn as ea
from efficient_attn.contract.budget import Budget
from efficient_attn.contract.decode_state import state_bytes
from efficient_attn.registry import class_of

WITH_FIT = [name for name in ea.names() if class_of(name).fit.__func__ is not ea.Attention.fit.__func__]  # pyright: ignore
BOUNDED_STATE = ("sliding_window", "attention_sinks", "longformer", "global_tokens", "performer", "random_feature")
SIZES = {"length": 2048, "kv_heads": 3, "head_dim": 64, "dtype": "float32", "causal": True}


def test_budgets_are_parsed_from_keys_sizes_and_fractions() -> None:
    assert Budget.parse("128", **SIZES).keys == 128
    assert Budget.parse("192KiB", **SIZES).keys == 128  # 3 heads, keys and values of 64 numbers of 4 bytes
    assert Budget.parse("192KiB", **SIZES | {"dtype": "bfloat16"}).keys == 256
    assert Budget.parse("9999", **SIZES).keys == 2048  # there are no more
    assert Budget.parse("N/16", **SIZES).keys == 128
    assert Budget.parse("N/16", **SIZES | {"length": 8192}).keys == 512
    for text in ("0", "1KiB", "many", "-3", "N/4096", "N/0", "N"):
        with pytest.raises(ea.UsageError, match=r"less than one key|size"):
            Budget.parse(text, **SIZES)


def test_patterns_and_random_features_define_fit() -> None:
    assert {"sliding_window", "attention_sinks", "strided", "random_blocks", "bigbird", "performer"} < set(WITH_FIT)
    with pytest.raises(ea.UnsupportedError, match="no rule"):
        class_of("full").fit(Budget(keys=8, length=64, head_dim=8, causal=True))


@pytest.mark.parametrize("name", WITH_FIT)
@settings(deadline=None, max_examples=12)
@given(keys=st.integers(1, 300), length=st.integers(1, 400), causal=st.booleans())
def test_fitted_options_stay_within_the_budget(name: str, keys: int, length: int, causal: bool) -> None:
    keys = min(keys, length)
    try:
        options = class_of(name).fit(Budget(keys=keys, length=length, head_dim=8, causal=causal))
    except ea.UsageError as error:
        assert str(keys) in str(error)  # noqa: PT017  (the message contains the budget that is too small)
        assert keys < max(3 * length**0.5, 9)
        return
    attn = ea.create(name, dims=ea.Dims(heads=1, kv_heads=1, head_dim=8, max_len=length), **options)
    if attn.pairs(length, length, causal) is None or not (attn.traits.causal if causal else attn.traits.bidirectional):
        return
    # global tokens also attend to all keys
    global_pairs = int(options.get("n_global", 0)) * length * (not causal)
    assert attn.pairs(length, length, causal) <= keys * length + global_pairs


@pytest.mark.parametrize("name", WITH_FIT)
@pytest.mark.parametrize("keys", [128, 512])
def test_fitted_options_use_most_of_the_budget(name: str, keys: int) -> None:
    length, causal = 2048, name != "reformer"
    options = class_of(name).fit(Budget(keys=keys, length=length, head_dim=64, causal=causal))
    attn = ea.create(name, dims=ea.Dims(heads=1, kv_heads=1, head_dim=64, max_len=length), **options)
    if attn.traits.causal and (pairs := attn.pairs(length, length, True)) is not None:
        assert pairs > 0.45 * keys * length  # fixed: half of a block is later than its query
    if name in BOUNDED_STATE:
        state = ea.state_bytes(attn.init_state(1, length, torch.float32))
        assert 0.95 < state / (keys * 2 * 64 * 4) < 1.05


@pytest.mark.parametrize(("keys", "gated"), [(8, False), (20, False), (16, True), (64, True), (200, True)])
def test_sums_of_random_features_fit_the_budget_in_their_own_dtype(keys: int, gated: bool) -> None:
    """The sums of few directions are in float64."""
    budget = Budget(keys=keys, length=2048, head_dim=64, causal=True, options={"gated": gated})
    options = class_of("random_feature").fit(budget)
    attn = ea.create("random_feature", gated=gated, dims=ea.Dims(heads=1, head_dim=64), **options)
    budget_bytes = keys * 2 * 64 * 4
    assert 0.7 * budget_bytes < state_bytes(attn.init_state(1, 2048, device="meta")) <= budget_bytes
