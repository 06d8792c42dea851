"""Swapping the attention of some or all layers: what runs, what is restored, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers as tf
from tiny_models import SIZES, bert, deepseek, gpt2, gptj, llama, make_ids, mistral
from torch import Tensor

import efficient_attn as ea
from efficient_attn.integrations import swapping
from efficient_attn.integrations.observers import watch
from efficient_attn.integrations.state_cache import StateCache
from efficient_attn.integrations.transformers import register

WINDOW = "sliding_window:window=4"
IMAGE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
}


def vit() -> Any:
    return tf.ViTModel(tf.ViTConfig(**IMAGE, patch_size=8))


def beit() -> Any:
    """BEiT, which adds a bias of positions to its mask."""
    return tf.BeitModel(tf.BeitConfig(**IMAGE, patch_size=8, use_relative_position_bias=True))


def bart() -> Any:
    sizes: dict[str, Any] = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 97}
    heads: dict[str, Any] = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    return tf.BartModel(tf.BartConfig(**sizes, **heads, encoder_ffn_dim=40, decoder_ffn_dim=40))


def gemma2() -> Any:
    return tf.Gemma2ForCausalLM(tf.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=16))


def bloom() -> Any:
    return tf.BloomForCausalLM(tf.BloomConfig(vocab_size=97, hidden_size=64, n_layer=2, n_head=4))


def deberta() -> Any:
    return tf.DebertaV2Model(tf.DebertaV2Config(**SIZES))


def make(build: Callable[..., Any] = llama, **more: Any) -> Any:
    torch.manual_seed(0)
    return build(**more).eval()


def read(model: Any, *, ids: Tensor | None = None, **inputs: Any) -> Tensor:
    with torch.no_grad():
        if model.main_input_name == "pixel_values":
            return model(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))[0]
        return model(make_ids() if ids is None else ids, **inputs)[0]


@pytest.mark.parametrize("build", [llama, mistral, gpt2, bert, deepseek, vit, bart])
def test_exact_attention_gives_the_models_output_and_is_removed(build: Callable[..., Any]) -> None:
    model = make(build)
    want, before, config = read(model), set(model.state_dict()), model.config
    with ea.swap(model, "full") as handle:
        torch.testing.assert_close(read(model), want, rtol=0, atol=1e-5)
        assert len(handle.mechanisms) == len(handle.layers) == (6 if build is bart else 2)
    assert torch.equal(read(model), want)
    assert set(model.state_dict()) == before
    assert model.config is config
    assert config._attn_implementation == "sdpa"
    assert not any("efficient" in name for name, _ in model.named_modules())


@pytest.mark.parametrize("own", ["eager", "sdpa", "efficient_attn:full"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_unnamed_layers_keep_the_models_own_attention(own: str, side: str) -> None:
    model, ids = make(num_hidden_layers=4), make_ids()
    model.set_attn_implementation(own)
    valid = torch.ones_like(ids)
    valid[1, :5] = valid[2, :20] = 0
    padding = {"none": None, "left": valid, "right": valid.flip(1)}[side]
    is_token = torch.ones_like(ids).bool() if padding is None else padding.bool()

    def compute() -> Tensor:
        return read(model, attention_mask=padding)[is_token]

    model.set_attn_implementation(register(WINDOW))
    all_windows = compute()
    model.set_attn_implementation(own)
    want = compute()
    with ea.swap(model, {1: "full"}), watch() as meter:
        torch.testing.assert_close(compute(), want, rtol=0, atol=1e-5)
    assert meter.calls == ({1: 1} if own != "efficient_attn:full" else dict.fromkeys(range(4), 1))
    with ea.swap(model, {0: WINDOW, range(1, 4): WINDOW}):
        torch.testing.assert_close(compute(), all_windows, rtol=0, atol=1e-5)
    with ea.swap(model, {2: WINDOW}):
        assert (compute() - want).abs().max() > 1e-4


def test_a_model_with_windows_keeps_them_in_unnamed_layers() -> None:
    model, ids = make(mistral), make_ids(length=40)
    want = read(model, ids=ids)
    with ea.swap(model, {0: "sliding_window:window=7"}):  # those of the model, which count the own position
        torch.testing.assert_close(read(model, ids=ids), want, rtol=0, atol=1e-5)


def test_a_phase_leaves_the_other_to_the_model() -> None:
    model, ids = make(), make_ids(1, 40)

    def step(cache: Any) -> Tensor:
        return read(model, ids=ids[:, -1:], past_key_values=cache)

    def prefill() -> tuple[Tensor, Any]:
        with torch.no_grad():
            output = model(ids[:, :-1], use_cache=True)
        return output.logits, output.past_key_values

    own, own_cache = prefill()
    own_step = step(deepcopy(own_cache))
    with ea.swap(model, WINDOW):
        windows, cache = prefill()
        windows_step = step(cache)
    with ea.swap(model, WINDOW, phase="decode"):
        torch.testing.assert_close(prefill()[0], own, rtol=0, atol=1e-6)
        assert (step(deepcopy(own_cache)) - own_step).abs().max() > 1e-5
    with ea.swap(model, WINDOW, phase="prefill"):
        logits, cache = prefill()
        torch.testing.assert_close(logits, windows, rtol=0, atol=1e-6)
        assert cache.get_seq_length() == 39, "all keys stay"
        last = step(cache)
        assert (last - windows_step).abs().max() > 1e-5
    assert not torch.equal(last, own_step), "its keys are those of the prefill with windows"
    with ea.swap(model, WINDOW, phase="prefill"), pytest.raises(ea.UsageError, match="phase='prefill', and its steps"):
        StateCache(model)


@pytest.mark.parametrize("mechanisms", [{0: "linear"}, {1: "linear"}, {0: WINDOW, 1: "linear"}, "full"])
def test_states_and_own_keys_in_one_cache_give_the_forward_pass(mechanisms: Any) -> None:
    model, ids = make(num_hidden_layers=3), make_ids(2, 40)
    with ea.swap(model, mechanisms), torch.no_grad():
        want, cache, parts = read(model, ids=ids), StateCache(model), ids.split([20, 1, 4, 15], 1)
        logits = [model(part, past_key_values=cache, use_cache=True).logits for part in parts]
        torch.testing.assert_close(torch.cat(logits, 1), want, rtol=0, atol=1e-5)
        n_states = 3 if mechanisms == "full" else len(mechanisms)
        assert sum(not isinstance(state, dict) for state in cache.states) == n_states
        rows = cache.copy_rows([1, 1], batch=2)
        got = model(ids[1:, :1].expand(2, 1), past_key_values=rows, use_cache=True).logits
        again = model(ids[:, :1], past_key_values=cache, use_cache=True).logits
    assert not torch.equal(got[0], again[0])
    torch.testing.assert_close(got[0], got[1], rtol=0, atol=1e-6)


def test_mechanisms_are_parameters_of_the_model() -> None:
    model = make(bert)
    n_parameters = sum(p.numel() for p in model.parameters())
    with ea.swap(model, "linformer:rank=8") as handle:
        added = [p for attn in handle.mechanisms.values() for p in attn.parameters()]
        assert {id(p) for p in added} <= {id(p) for p in model.parameters()}
        assert sum(p.numel() for p in model.parameters()) == n_parameters + sum(p.numel() for p in added)
        model(make_ids())[0].square().mean().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in added)
        assert not torch.equal(added[0], added[-1]), "each layer is seeded by its number"
        names = {n for n, _ in model.named_parameters() if "attention.self.efficient_attn." in n}
        assert len(names) == len(added)
        other = make(bert)
        with ea.swap(other, "linformer:rank=8"):
            with torch.no_grad():
                added[0].add_(1.0)
            assert not torch.equal(read(other), read(model))
            other.load_state_dict(model.state_dict())
            assert torch.equal(read(other), read(model))
        model.to(torch.float64)
        assert all(p.dtype == torch.float64 for p in added)
    weights = make(bert).state_dict()
    model.load_state_dict(weights)  # strict


def test_a_copy_is_swapped_and_independent() -> None:
    model = make()
    own = read(model)
    with ea.swap(model, WINDOW):
        want, copied = read(model), deepcopy(model)
    assert torch.equal(read(model), own)
    assert torch.equal(read(copied), want)
    with torch.no_grad():
        copied.lm_head.weight.mul_(2)
    assert torch.equal(read(model), own)
    with pytest.raises(ea.UsageError, match="swapped already"):
        ea.swap(copied, "full")


def test_other_models_with_the_same_configuration_are_not_affected() -> None:
    config = tf.LlamaConfig(**SIZES, num_key_value_heads=2)
    first, second = (tf.LlamaForCausalLM(config).eval() for _ in range(2))
    want = read(second)
    with ea.swap(first, "linear"), watch() as meter:
        assert torch.equal(read(second), want)
    assert not meter.calls


def test_generation_random_numbers_and_modes_are_kept() -> None:
    model, ids = make().train(), make_ids(2)
    model.model.layers[0].eval()
    modes, state = [module.training for module in model.modules()], torch.get_rng_state()
    with ea.swap(model, "performer"):
        assert torch.equal(torch.get_rng_state(), state)
        assert [m.training for n, m in model.named_modules() if "efficient_attn" not in n] == modes
    model.eval()
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    want, beams = model.generate(ids, **options), model.generate(ids, num_beams=3, **options)
    static = {"cache_implementation": "static", "disable_compile": True}
    with ea.swap(model, "full"):
        for more in ({}, {"past_key_values": StateCache(model)}, static):
            assert torch.equal(model.generate(ids, **options, **more), want), more
        assert torch.equal(model.generate(ids, num_beams=3, **options), beams)


@pytest.mark.parametrize(
    ("build", "mechanisms", "message"),
    [
        (llama, {2: "full"}, "LlamaForCausalLM has no layer 2 with attention; it has 0, 1"),
        (llama, {range(3): "full"}, "LlamaForCausalLM has no layer 2"),
        (llama, {-1: "full"}, "has no layer -1"),
        (llama, {0: "full", range(2): "linear"}, "layer 0 is given two mechanisms, full and linear"),
        (llama, {}, "no layer of LlamaForCausalLM is given a mechanism"),
        (llama, {0: "ful"}, "ful"),
        (gptj, "full", "GPTJForCausalLM: this model computes with its mask"),
        (bloom, "full", "BloomForCausalLM: this model computes with its mask"),
        (deberta, "full", "DebertaV2Model computes attention itself"),
    ],
)
def test_invalid_swaps_are_reported_and_change_nothing(
    build: Callable[..., Any], mechanisms: Any, message: str
) -> None:
    check_refused(make(build), mechanisms, ea.UsageError, message)


@pytest.mark.parametrize(
    ("build", "mechanisms", "message"),
    [
        (gemma2, "linear", "Gemma2ForCausalLM: linear: this model's scores have a soft cap"),
        (beit, "linear", "BeitModel: linear: this model's scores have a bias of scores"),
        (llama, {1: "nystromformer"}, "LlamaForCausalLM: nystromformer does not support a causal mask"),
        (llama, "mla", "mla requires"),
        (llama, "reformer", "reformer requires queries as keys"),
    ],
)
def test_unsupported_features_are_reported_and_change_nothing(
    build: Callable[..., Any], mechanisms: Any, message: str
) -> None:
    check_refused(make(build), mechanisms, ea.UnsupportedError, message)


def check_refused(model: Any, mechanisms: Any, error: type[Exception], message: str) -> None:
    config, before = model.config, set(model.state_dict())
    with pytest.raises(error, match=message):
        ea.swap(model, mechanisms)
    assert model.config is config
    assert set(model.state_dict()) == before
    assert read(model).isfinite().all()


def test_other_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = make()
    with pytest.raises(ea.UsageError, match="phase is one of all, prefill, decode, got 'decoding'"):
        ea.swap(model, "full", phase="decoding")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ea.UsageError, match="Linear is not a model of transformers"):
        ea.swap(torch.nn.Linear(2, 2), "full")
    model.main_input_name = "input_features"
    with pytest.raises(ea.UsageError, match="LlamaForCausalLM reads input_features; give the inputs"):
        ea.swap(model, "full")
    with ea.swap(model, "full", sample={"input_ids": make_ids(1)}) as handle:
        assert list(handle.mechanisms) == [0, 1]
        assert "phase='all'" in repr(handle)
    monkeypatch.setattr(swapping, "find_spec", lambda _: None)
    with pytest.raises(ea.UsageError, match="swap needs transformers; run: pip install"):
        ea.swap(model, "full")
