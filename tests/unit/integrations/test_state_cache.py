"""States as transformers' cache: the same tokens, in states of bounded size if the mechanism's is bounded."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import deepseek, gemma3n, gpt2, llama, make_ids, mistral

import efficient_attn as ea
from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.integrations.evictions import Tova
from efficient_attn.integrations.state_cache import StateCache
from efficient_attn.integrations.transformers import register


def _model(make: Any, spec: str) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    model.set_attn_implementation(register(spec))
    return model


@pytest.mark.parametrize("spec", ["full", "sliding_window:window=4", "linear", "attention_sinks:window=4:n_sink=2"])
@pytest.mark.parametrize("make", [llama, gpt2, deepseek])
def test_states_generate_the_tokens_of_a_full_cache(make: Any, spec: str) -> None:
    model, ids = _model(make, spec), make_ids(1)
    own = model.generate(ids, max_new_tokens=40, do_sample=False)
    assert torch.equal(model.generate(ids, max_new_tokens=40, do_sample=False, past_key_values=StateCache(model)), own)


def test_states_apply_the_models_window() -> None:
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


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("spec", ["full", "sliding_window:window=4", "linear", "strided:stride=3", "retention"])
@pytest.mark.parametrize("make", [llama, deepseek])
def test_states_of_rows_with_left_padding_and_of_beams(make: Any, spec: str, beams: int) -> None:
    model, ids = _model(make, spec), make_ids(3)
    valid = torch.ones_like(ids)
    valid[1, :4] = valid[2, :9] = 0
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "num_beams": beams, "output_logits": True}
    options |= {"attention_mask": valid, "return_dict_in_generate": True}
    want, got = (model.generate(ids, past_key_values=c, **options) for c in (None, StateCache(model)))
    assert torch.equal(got.sequences, want.sequences)
    torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), rtol=0, atol=1e-5)


def test_unsupported_uses_of_states_are_reported() -> None:
    model, ids = _model(llama, "full"), make_ids(3)
    for hidden, passes, problem in (
        (slice(5, 9), None, "padding on the left only"),
        (slice(0, 9), 6, "must be the same in every pass, and end in the first"),
    ):
        valid = torch.ones_like(ids)
        valid[1, hidden] = 0
        options: dict[str, Any] = {"attention_mask": valid, "max_new_tokens": 4, "prefill_chunk_size": passes}
        with pytest.raises(UnsupportedError, match=problem):
            model.generate(ids, past_key_values=StateCache(model), **options)
    with pytest.raises(UsageError, match="max_len=30"):
        model.generate(ids[:1], max_new_tokens=10, do_sample=False, past_key_values=StateCache(model, max_len=30))
    model.set_attn_implementation("eager")
    with pytest.raises(UsageError, match=r"the model runs .eager.; call ea.swap"):
        StateCache(model)


def test_logits_of_a_model_that_changes_keys_after_the_cache() -> None:
    model, ids = _model(deepseek, "full"), make_ids(2)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "output_scores": True}
    options["return_dict_in_generate"] = True
    want, got = (model.generate(ids, past_key_values=c, **options).scores for c in (None, StateCache(model)))
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=0, atol=1e-5)


def test_positions_that_reach_no_mechanism_are_reported() -> None:
    cache, keys = StateCache(_model(llama, "full")), torch.zeros(1, 2, 5, 16)
    cache.update(keys, keys, 0)
    with pytest.raises(UnsupportedError, match="5 new positions reached no mechanism"):
        cache.update(keys, keys, 1)
    for read in (cache.get_seq_length, lambda: cache.states):
        cache.reset()
        cache.update(keys, keys, 0)
        with pytest.raises(UnsupportedError, match="5 new positions"):
            read()
    StateCache(_model(llama, "full")).update(keys, keys, 0)
    other = StateCache(_model(llama, "full"))
    other.update(keys, keys, 0)  # an abandoned pass of another cache is no error


def test_an_abandoned_pass_does_not_affect_the_next_one() -> None:
    model, ids = _model(llama, "full"), make_ids(1)
    with torch.inference_mode():
        want, cache = model(ids).logits, StateCache(model)
        model(ids, past_key_values=cache)
        cache.update(torch.zeros(1, 2, ids.shape[1], 16), torch.zeros(1, 2, ids.shape[1], 16), 0)
        assert torch.equal(model(ids).logits, want)
        with pytest.raises(UnsupportedError, match="24 new positions reached no mechanism"):
            cache.get_seq_length()


def test_layers_that_share_keys_are_refused() -> None:
    model = _model(gemma3n, "full")
    with pytest.raises(UnsupportedError, match="attends over 1 keys, and its mask is for 25"):
        model.generate(make_ids(1), max_new_tokens=4, past_key_values=StateCache(model))


def test_prompt_lookup_is_refused() -> None:
    model = _model(llama, "full")
    ids = make_ids(1).repeat(1, 2)
    with pytest.raises(UnsupportedError, match="cannot forget tokens"):
        model.generate(ids, max_new_tokens=20, prompt_lookup_num_tokens=3, past_key_values=StateCache(model))


@pytest.mark.parametrize("spec", ["full", "sliding_window:window=4", "retention"])
def test_copies_are_independent(spec: str) -> None:
    model, (ids,) = _model(llama, spec), make_ids(1)
    ends = torch.tensor([[5, 6, 7], [8, 9, 10]])
    with torch.inference_mode():
        cache = StateCache(model)
        model(ids[None], past_key_values=cache)
        two = cache.copy_rows([0, 0])
        model(ends.flip(0), past_key_values=cache.copy_rows([0, 0]))  # another copy's steps are nobody else's
        found = model(ends, past_key_values=two).logits
        swapped = model(ends[:, :1], past_key_values=two.copy_rows([1, 0], batch=2)).logits
        assert (two.get_seq_length(), cache.get_seq_length()) == (len(ids) + 3, len(ids))
        for row, end in enumerate(ends):
            whole = model(torch.cat([ids, end])[None], use_cache=False).logits
            torch.testing.assert_close(found[row], whole[0, -3:], rtol=0, atol=1e-5)
            longer = torch.cat([ids, ends[1 - row], end[:1]])
            torch.testing.assert_close(swapped[row], model(longer[None]).logits[0, -1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "spec", ["full", "sliding_window:window=5", "linear", "quest:page=4:pages=2", "knorm:window=4:keys=6"]
)
@pytest.mark.parametrize("padded", [False, True])
def test_a_prompt_read_with_the_models_own_attention_continues_from_states(spec: str, padded: bool) -> None:
    """The same as with transformers' cache, whose steps see all keys."""
    torch.manual_seed(0)
    model, ids = llama().eval(), make_ids(2, 33)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "output_logits": True}
    options |= {"return_dict_in_generate": True, "attention_mask": torch.ones_like(ids)}
    if padded:
        options["attention_mask"][1, :6] = 0
    with ea.swap(model, spec, phase="decode"):
        want = model.generate(ids, **options)
        cache = StateCache(model)
        found = model.generate(ids, past_key_values=cache, **options)
    assert torch.equal(found.sequences, want.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(want.logits), rtol=0, atol=2e-6)
    with torch.no_grad():
        own = model(ids, attention_mask=options["attention_mask"]).logits[:, -1]
    torch.testing.assert_close(found.logits[0], own, rtol=0, atol=2e-6)


def test_what_a_prompt_in_several_passes_needs_is_refused() -> None:
    model, ids = llama().eval(), make_ids(1, 20)
    with ea.swap(model, "sliding_window:window=5", phase="decode"), torch.no_grad():
        cache = StateCache(model)
        model(ids[:, :12], past_key_values=cache, use_cache=True)
        with pytest.raises(UnsupportedError, match="does not support a prompt in several passes"):
            model(ids[:, 12:], past_key_values=cache, use_cache=True)
    with ea.swap(model, "full", phase="decode"), torch.no_grad():
        cache = StateCache(model, keep=Tova(keys=8))
        with pytest.raises(UnsupportedError, match="does not support a rule that drops keys"):
            model(ids, past_key_values=cache, use_cache=True)
