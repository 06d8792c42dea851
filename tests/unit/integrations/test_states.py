"""States behind transformers' cache: the same tokens as without them, in bytes that do not grow where they need not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import gpt2, llama, make_ids, mistral

import efficient_attn as ea
from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.integrations.states import StateCache
from efficient_attn.integrations.transformers import register


def _model(make: Any, spec: str) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    model.set_attn_implementation(register(spec))
    return model


@pytest.mark.parametrize("spec", ["full", "sliding_window:window=4", "linear", "attention_sinks:window=4:n_sink=2"])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_states_generate_what_a_cache_of_all_keys_does(make: Any, spec: str) -> None:
    model, ids = _model(make, spec), make_ids(1)
    own = model.generate(ids, max_new_tokens=40, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=40, do_sample=False, past_key_values=StateCache(model)), own)


def test_a_models_own_window_holds_in_a_state() -> None:
    model, ids = _model(mistral, "full"), make_ids(1)
    own = model.generate(ids, max_new_tokens=40, do_sample=False)
    cache = StateCache(model)
    assert torch.equal(model.generate(ids, max_new_tokens=40, do_sample=False, past_key_values=cache), own)
    assert cache.states[0].slots == 8


@pytest.mark.parametrize("spec", ["sliding_window:window=4", "linear", "attention_sinks:window=4:n_sink=2"])
def test_bounded_states_stay_bounded(spec: str) -> None:
    model = _model(llama, spec)
    cache, sizes = StateCache(model), []
    for count in (20, 150):
        model.generate(make_ids(1), max_new_tokens=count, do_sample=False, past_key_values=cache)
        sizes.append(ea.state_bytes(cache.states))
        cache.reset()
    assert sizes[0] == sizes[1] > 0


def test_several_rows_of_one_length() -> None:
    model, ids = _model(llama, "linear"), make_ids(3)
    own = model.generate(ids, max_new_tokens=12, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, past_key_values=StateCache(model)), own)


def test_what_a_state_cannot_do_is_said() -> None:
    model, ids = _model(llama, "full"), make_ids(3)
    valid = torch.ones_like(ids)
    valid[1, :4] = 0
    with pytest.raises(UnsupportedError, match="padding"):
        model.generate(ids, attention_mask=valid, max_new_tokens=4, past_key_values=StateCache(model))
    with pytest.raises(UnsupportedError, match="beams"):
        model.generate(ids[:1], num_beams=2, max_new_tokens=4, past_key_values=StateCache(model))
    with pytest.raises(UsageError, match="max_len=30"):
        model.generate(ids[:1], max_new_tokens=10, do_sample=False, past_key_values=StateCache(model, max_len=30))
    model.set_attn_implementation("eager")
    with pytest.raises(UsageError, match="set_attn_implementation"):
        StateCache(model)
