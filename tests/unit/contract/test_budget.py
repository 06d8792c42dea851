"""A budget, and the rules by which mechanisms are fitted to it: over the registry, as much as they may and no more."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import efficient_attn as ea
from efficient_attn.contract.budget import Budget
from efficient_attn.registry import class_of

HAVE_RULES = [name for name in ea.names() if class_of(name).fit.__func__ is not ea.Attention.fit.__func__]  # pyright: ignore
SETS_ITS_STATE = ("sliding_window", "attention_sinks", "longformer", "global_tokens", "performer", "random_feature")
SIZES = {"length": 2048, "kv_heads": 3, "head_dim": 64, "dtype": "float32", "causal": True}


def test_a_number_is_of_keys_and_a_size_of_a_layers_state() -> None:
    assert Budget.parse("128", **SIZES).keys == 128
    assert Budget.parse("192KiB", **SIZES).keys == 128  # 3 heads, keys and values of 64 numbers of 4 bytes
    assert Budget.parse("192KiB", **SIZES | {"dtype": "bfloat16"}).keys == 256
    assert Budget.parse("9999", **SIZES).keys == 2048  # there are no more
    assert Budget.parse("N/16", **SIZES).keys == 128
    assert Budget.parse("N/16", **SIZES | {"length": 8192}).keys == 512
    for text in ("0", "1KiB", "many", "-3", "N/4096", "N/0", "N"):
        with pytest.raises(ea.UsageError, match=r"less than one key|size"):
            Budget.parse(text, **SIZES)


def test_every_kind_of_pattern_and_every_drawn_map_has_a_rule() -> None:
    assert {"sliding_window", "attention_sinks", "strided", "random_blocks", "bigbird", "performer"} < set(HAVE_RULES)
    with pytest.raises(ea.UnsupportedError, match="no rule"):
        class_of("full").fit(Budget(keys=8, length=64, head_dim=8, causal=True))


@pytest.mark.parametrize("name", HAVE_RULES)
@settings(deadline=None, max_examples=12)
@given(keys=st.integers(1, 300), length=st.integers(1, 400), causal=st.booleans())
def test_no_query_reads_more_keys(name: str, keys: int, length: int, causal: bool) -> None:
    keys = min(keys, length)
    try:
        options = class_of(name).fit(Budget(keys=keys, length=length, head_dim=8, causal=causal))
    except ea.UsageError as error:
        assert str(keys) in str(error)  # noqa: PT017  (it says which budget is too small)
        assert keys < max(3 * length**0.5, 9)
        return
    attn = ea.create(name, dims=ea.Dims(heads=1, kv_heads=1, head_dim=8, max_len=length), **options)
    if attn.pairs(length, length, causal) is None or not (attn.traits.causal if causal else attn.traits.bidirectional):
        return
    # those whom everyone sees also see everyone
    seeing = int(options.get("n_global", 0)) * length * (not causal)
    assert attn.pairs(length, length, causal) <= keys * length + seeing


@pytest.mark.parametrize("name", HAVE_RULES)
@pytest.mark.parametrize("keys", [128, 512])
def test_most_of_the_budget_is_used(name: str, keys: int) -> None:
    length, causal = 2048, name != "reformer"
    options = class_of(name).fit(Budget(keys=keys, length=length, head_dim=64, causal=causal))
    attn = ea.create(name, dims=ea.Dims(heads=1, kv_heads=1, head_dim=64, max_len=length), **options)
    if attn.traits.causal and (pairs := attn.pairs(length, length, True)) is not None:
        assert pairs > 0.45 * keys * length  # fixed: half of a block is later than its query
    if name in SETS_ITS_STATE:
        state = ea.state_bytes(attn.init_state(1, length, torch.float32))
        assert 0.95 < state / (keys * 2 * 64 * 4) < 1.05
