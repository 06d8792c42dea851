"""Mechanisms inside tiny models of transformers: they match its own attention, and refuse unsupported features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import bert, gpt2, llama, make_ids, mistral, qwen2_moe
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.integrations import transformers as ours
from efficient_attn.integrations.model_masks import ModelMask
from efficient_attn.integrations.observers import watch

FULL = "efficient_attn:full"
MODELS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "mistral": mistral,
    "gpt2": gpt2,
    "bert": bert,
    "qwen2_moe": qwen2_moe,
}
DECODERS = ("llama", "mistral", "gpt2")


def _make(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def _padding(side: str) -> Tensor | None:
    if side == "none":
        return None
    valid = torch.ones(3, 24, dtype=torch.long)
    valid[1, :5] = valid[2, :20] = 0
    return valid if side == "left" else valid.flip(1)


def _run(model: Any, attention: str, ids: Tensor, valid: Tensor | None = None) -> Tensor:
    model.set_attn_implementation(attention)
    with torch.no_grad():
        return model(ids, attention_mask=valid)[0]


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_exact_attention_equals_the_models(name: str, side: str) -> None:
    model, ids, valid = _make(name), make_ids(), _padding(side)
    own, other = (_run(model, how, ids, valid) for how in ("eager", FULL))
    wanted = torch.ones_like(ids) if valid is None else valid
    assert not other.isnan().any()  # rows that see nothing included
    torch.testing.assert_close(other * wanted[..., None], own * wanted[..., None], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_calls_the_mechanism(name: str) -> None:
    model = _make(name)
    with watch() as meter:
        _run(model, FULL, make_ids())
    assert meter.calls == {0: 1, 1: 1}
    assert meter.seconds > 0
    with watch() as meter:
        _run(model, "eager", make_ids())
    assert not meter.calls


def _masks(monkeypatch: pytest.MonkeyPatch, model: Any, valid: Tensor | None, ids: Tensor) -> list[ModelMask]:
    seen: list[ModelMask] = []
    read = ours._read_mask

    def keep(*given: Any) -> ModelMask:
        seen.append(read(*given))
        return seen[-1]

    monkeypatch.setattr(ours, "_read_mask", keep)
    _run(model, FULL, ids, valid)
    return seen


@pytest.mark.parametrize(
    ("name", "causal", "window"), [("llama", True, None), ("mistral", True, 8), ("bert", False, None)]
)
def test_masks_arrive_as_values(monkeypatch: pytest.MonkeyPatch, name: str, causal: bool, window: int | None) -> None:
    for side in ("none", "left", "right"):
        valid = _padding(side)
        for told in _masks(monkeypatch, _make(name), valid, make_ids()):
            assert (told.mask.causal, told.window) == (causal, window)
            if valid is None:
                assert not told.mask.pads_keys
            elif side == "right":
                assert told.mask.key_lengths is not None
                assert told.mask.key_lengths.tolist() == valid.sum(1).tolist()
            else:
                assert told.mask.key_mask is not None
                assert torch.equal(told.mask.key_mask, valid.bool())


def test_a_wrong_mask_changes_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = _make("llama"), make_ids()
    own = _run(model, "eager", ids)
    monkeypatch.setattr(ours, "_read_mask", lambda *_: ModelMask(ea.Mask()))
    assert (_run(model, FULL, ids) - own).abs().max() > 1e-3


def test_packed_sequences_are_independent() -> None:
    model, ids = _make("llama"), make_ids(1)
    places = torch.cat([torch.arange(10), torch.arange(14)])[None]
    found = []
    for how in ("eager", FULL):
        model.set_attn_implementation(how)
        with torch.no_grad():
            found.append(model(ids, position_ids=places, use_cache=False).logits)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_generation_equals_the_models(name: str) -> None:
    model, ids = _make(name), make_ids(1)
    found = []
    for how in ("eager", FULL):
        model.set_attn_implementation(how)
        found.append(model.generate(ids, max_new_tokens=64, do_sample=False))
    assert torch.equal(*found)
    assert found[0].shape[1] == 24 + 64


@pytest.mark.parametrize("spec", ["sliding_window:window=4", "attention_sinks:window=4:n_sink=2", "linear", "strided"])
def test_generated_tokens_equal_those_of_passes_over_the_whole_text(spec: str) -> None:
    """With transformers' own cache, each step gives the output of a pass over all positions."""
    model, ids = _make("llama"), make_ids(1)
    model.set_attn_implementation(ours.register(spec))
    text = model.generate(ids, max_new_tokens=12, do_sample=False)
    with torch.no_grad():
        said = model(text).logits.argmax(-1)[:, 23:-1]
    assert torch.equal(said, text[:, 24:])


def test_gradients_reach_the_weights() -> None:
    model, ids = _make("llama"), make_ids()
    found = []
    for how in ("eager", FULL):
        model.zero_grad()
        model.set_attn_implementation(how)
        model(ids, labels=ids).loss.backward()
        found.append(model.model.layers[0].self_attn.k_proj.weight.grad.clone())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)


def test_other_scales_are_applied() -> None:
    model, ids = _make("llama"), make_ids()
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.3
    torch.testing.assert_close(_run(model, FULL, ids), _run(model, "eager", ids), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"softcap": 50.0}, "have a soft cap"),
        ({"s_aux": torch.ones(4)}, "have learned sinks"),
        ({"position_bias": torch.ones(1, 4, 8, 8)}, "have a bias of scores"),
        ({"output_attentions": True}, "requires weights as an output"),
    ],
)
def test_unsupported_features_are_refused(asked: dict[str, Any], problem: str) -> None:
    layer, x = _make("llama").model.layers[0].self_attn, torch.randn(1, 4, 8, 16)
    with pytest.raises(UnsupportedError, match=problem):
        ours.attend("linear", layer, x, x, x, None, **asked)


def test_dropout_is_applied_by_the_mechanism_or_refused() -> None:
    model = llama(attention_dropout=0.5).train()
    model.set_attn_implementation(FULL)
    one, other = (model(make_ids()).logits for _ in range(2))
    assert not torch.equal(one, other)
    model.set_attn_implementation("efficient_attn:linear")
    with pytest.raises(UnsupportedError, match="dropout"):
        model(make_ids())


def test_windows_of_a_model_and_of_a_mechanism() -> None:
    model, ids = _make("mistral"), make_ids()
    _run(model, ours.register("sliding_window:window=4"), ids)  # within the model's own
    with pytest.raises(UnsupportedError, match="window of 8"):
        _run(model, "efficient_attn:linear", ids)


def test_missing_traits_are_reported() -> None:
    with pytest.raises(UnsupportedError, match="causal"):
        _run(_make("llama"), "efficient_attn:linformer", make_ids())
    for spec, word in (("reformer", "queries as keys"), ("mla", "values"), ("random_feature:gated=true", "gate")):
        with pytest.raises(UnsupportedError, match=word):
            ours.register(spec)
    with pytest.raises(UsageError, match="sliding_window"):
        ours.register("sliding_windw")


def test_names_that_transformers_treats_specially_are_aliased() -> None:
    model, ids = _make("llama"), make_ids()
    name = ours.register("full:backend=sdpa")
    assert "sdpa" not in name
    with watch() as meter:
        found = _run(model, name, ids)
    assert meter.calls.total() == 2
    torch.testing.assert_close(found, _run(model, "eager", ids), rtol=0, atol=1e-5)
    assert ours.register("gqa:kv_heads=8") == "efficient_attn:gqa:kv_heads=8"


def test_each_layer_has_its_own_instance() -> None:
    model, ids = _make("llama"), make_ids()
    _run(model, "efficient_attn:performer", ids)
    made = [vars(layer.self_attn)[ours.INSTANCES]["performer", 0] for layer in model.model.layers]
    assert [attn.seed for attn in made] == [0, 1]
    assert all(attn.dims == ea.Dims(heads=4, head_dim=16, kv_heads=2, value_dim=16, max_len=256) for attn in made)
    assert not any(key.startswith("performer") for key in model.state_dict())


def test_a_model_that_bypasses_the_interface_is_reported() -> None:
    model, ids = _make("llama"), make_ids(1)
    with watch() as meter:
        _run(model, FULL, ids)
    meter.check(model, "full")
    with watch() as meter:
        _run(model, "eager", ids)
    with pytest.raises(UsageError, match="LlamaForCausalLM called full in 0 of its 2 layers"):
        meter.check(model, "full")


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("spec", ["full", "sliding_window:window=4", "linear", "longformer"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_static_cache_gives_the_scores_of_a_growing_one(name: str, spec: str, side: str) -> None:
    if name == "mistral" and spec in ("linear", "longformer"):
        pytest.skip("neither can be restricted to the model's window")
    model, ids, valid = _make(name), make_ids(), _padding(side)
    model.set_attn_implementation(ours.register(spec))
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "output_scores": True}
    options |= {"return_dict_in_generate": True, "attention_mask": torch.ones_like(ids) if valid is None else valid}
    want = model.generate(ids, **options).scores
    got = model.generate(ids, cache_implementation="static", disable_compile=True, **options).scores
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "use", [lambda mask: torch.zeros(1, 4, 3, 3) * mask, lambda mask: mask[:, :, 0], lambda mask: mask.shape]
)
def test_a_model_that_computes_with_its_mask_is_refused(use: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedError, match="this model computes with its mask"):
        use(ModelMask(Mask(causal=False)))
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        _ = ModelMask(Mask()).colour  # pyright: ignore[reportAttributeAccessIssue]
