"""Soft caps, learned sinks and biases of models: exact attention and windows equal the models' own, eager attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers as tf
from tiny_models import SIZES, llama, make_ids
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract.mask import Mask
from efficient_attn.errors import UnsupportedError
from efficient_attn.integrations.score_features import ScoreFeatures, attend_with_features
from efficient_attn.integrations.state_cache import StateCache

TEXT: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "head_dim": 16}


def gemma2(window: int = 8, layers: str = "sliding full") -> Any:
    """Gemma 2 with a soft cap that changes its scores."""
    kinds = [f"{name}_attention" for name in layers.split()]
    sizes: dict[str, Any] = TEXT | {"sliding_window": window, "layer_types": kinds, "query_pre_attn_scalar": 4}
    return tf.Gemma2ForCausalLM(tf.Gemma2Config(**sizes | {"attn_logit_softcapping": 0.5}))


def gemma3() -> Any:
    sizes: dict[str, Any] = TEXT | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    return tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**sizes))


def gpt_oss(window: int = 8, layers: str = "sliding full") -> Any:
    kinds = [f"{name}_attention" for name in layers.split()]
    sizes: dict[str, Any] = TEXT | {
        "sliding_window": window,
        "layer_types": kinds,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    model = tf.GptOssForCausalLM(tf.GptOssConfig(**sizes))
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    return model


def modernbert() -> Any:
    sizes: dict[str, Any] = SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2}
    return tf.ModernBertForMaskedLM(tf.ModernBertConfig(**sizes | {"cls_token_id": 1, "sep_token_id": 2}))


def t5() -> Any:
    sizes: dict[str, Any] = {"vocab_size": 97, "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    sizes |= {"decoder_start_token_id": 0, "dropout_rate": 0.0}
    return tf.T5ForConditionalGeneration(tf.T5Config(**sizes))


def swin() -> Any:
    sizes: dict[str, Any] = {"image_size": 32, "patch_size": 2, "window_size": 4, "depths": [2, 2], "num_heads": [2, 4]}
    return tf.SwinForImageClassification(tf.SwinConfig(**sizes | {"embed_dim": 32}))


def beit() -> Any:
    sizes: dict[str, Any] = SIZES | {"image_size": 32, "patch_size": 8, "use_relative_position_bias": True}
    model = tf.BeitForImageClassification(tf.BeitConfig(**sizes))
    for name, parameter in model.named_parameters():
        if name.endswith("bias_table"):
            torch.nn.init.normal_(parameter)
    return model


def make_inputs(model: Any, *, padded: str = "") -> dict[str, Tensor]:
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))}
    inputs = {"input_ids": make_ids(2, 24)}
    if padded:
        inputs["attention_mask"] = torch.ones(2, 24, dtype=torch.int64)
        inputs["attention_mask"][1, : 7 if padded == "left" else 24] = 0
        if padded == "right":
            inputs["attention_mask"][1] = 1
            inputs["attention_mask"][1, 17:] = 0
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = make_ids(2, 11)
    return inputs


def run(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits of positions that are not padding, and the gradients of all parameters."""
    logits = model(**inputs).logits
    if "attention_mask" in inputs and not model.config.is_encoder_decoder:
        logits = logits[inputs["attention_mask"].bool()]
    model.zero_grad()
    logits.square().mean().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal_to_eager(make: Callable[[], Any], inputs: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    model.set_attn_implementation("eager")
    logits, grads = run(model, inputs)
    with ea.swap(model, "full"):
        ours, our_grads = run(model, inputs)
    torch.testing.assert_close(ours, logits, rtol=0, atol=2e-6)
    assert our_grads.keys() == grads.keys()
    for name, grad in grads.items():
        assert (our_grads[name] - grad).norm() <= 2e-5 * grad.norm() + 1e-9, name


MODELS = [gemma2, gemma3, gpt_oss, modernbert, t5, swin, beit]


@pytest.mark.parametrize("make", MODELS)
def test_exact_attention_equals_the_models_own_with_gradients(make: Callable[[], Any]) -> None:
    assert_equal_to_eager(make, make_inputs(make()))


@pytest.mark.parametrize("padded", ["left", "right"])
@pytest.mark.parametrize("make", [gemma2, gemma3, gpt_oss, modernbert, t5])
def test_padded_batches_equal_the_models_own(make: Callable[[], Any], padded: str) -> None:
    assert_equal_to_eager(make, make_inputs(make(), padded=padded))


@pytest.mark.parametrize("make", [gemma2, gpt_oss])
def test_a_window_keeps_the_features_of_scores(make: Callable[..., Any]) -> None:
    """A window of 5 keys everywhere, in a model with longer ones, is the model whose own windows have 5 keys."""
    torch.manual_seed(0)
    short = make(5, "sliding sliding").eval()
    short.set_attn_implementation("eager")
    model = make(20, "sliding full").eval()
    model.load_state_dict(short.state_dict())
    inputs = make_inputs(model)
    with torch.no_grad():
        want = short(**inputs).logits
        with ea.swap(model, "sliding_window:window=4"):
            found = model(**inputs).logits
        assert (model(**inputs).logits - want).abs().max() > 1e-4
    torch.testing.assert_close(found, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("make", [gemma2, gemma3, gpt_oss, t5])
def test_greedy_generation_with_transformers_cache_is_the_models_own(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    model.set_attn_implementation("eager")
    options: dict[str, Any] = {"max_new_tokens": 14, "do_sample": False}
    ids = make_ids(2, 12)
    want = model.generate(ids, **options)
    with ea.swap(model, "full"):
        assert torch.equal(model.generate(ids, **options), want)


def test_what_no_kernel_computes_is_refused_in_one_line() -> None:
    for make, feature in ((gemma2, "a soft cap"), (gpt_oss, "learned sinks"), (t5, "a bias of scores")):
        model = make()
        with pytest.raises(UnsupportedError, match=f"linear: this model's scores have {feature}"):
            ea.swap(model, "linear")
        model(**make_inputs(model))  # unchanged
    model = t5()
    with ea.swap(model, "full"), pytest.raises(UnsupportedError, match="T5ForConditionalGeneration has an encoder and"):
        StateCache(model)
    model = gpt_oss()
    with ea.swap(model, "full"), pytest.raises(UnsupportedError, match="StateCache does not support learned sinks"):
        model(make_ids(1, 8), past_key_values=StateCache(model), use_cache=True)


def test_windows_with_a_bias_equal_one_mask_over_all_pairs() -> None:
    attn = ea.create("sliding_window:window=3")
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 6)
    bias = torch.randn(1, 4, 9, 9)
    keys, values = (x.repeat_interleave(2, 1) for x in (k, v))
    distance = torch.arange(9)[:, None] - torch.arange(9)
    for causal in (False, True):
        hidden = (distance.abs() > 3) | (distance < 0 if causal else distance > 99)
        scores = q @ keys.mT / 8**0.5 + bias
        want = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
        found = attend_with_features(attn, ScoreFeatures(bias=bias), q, k, v, Mask(causal=causal))
        torch.testing.assert_close(found, want, rtol=0, atol=1e-6)


def test_features_that_do_not_go_together_are_refused() -> None:
    q, k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    attn, bias = ea.create("full"), torch.zeros(1, 1, 5, 5)
    for features, mask, dropout, problem in (
        (ScoreFeatures(bias=bias), Mask(), 0.1, "dropout"),
        (ScoreFeatures(bias=bias[..., :4]), Mask(), 0.0, "another number of keys than 5"),
        (ScoreFeatures(softcap=1.0, bias=bias), Mask(), 0.0, "a soft cap as well"),
        (ScoreFeatures(softcap=1.0), Mask(cu_seqlens=torch.tensor([0, 2, 5])), 0.0, "packed sequences"),
    ):
        with pytest.raises(UnsupportedError, match=f"goes not with {problem}"):
            attend_with_features(attn, features, q, k, v, mask, dropout=dropout)


def test_a_mechanism_in_one_layer_leaves_the_bias_of_others() -> None:
    torch.manual_seed(0)
    model = beit().eval()
    inputs = make_inputs(model)
    with torch.no_grad():
        want = model(**inputs).logits
        with ea.swap(model, {0: "full"}):
            torch.testing.assert_close(model(**inputs).logits, want, rtol=0, atol=2e-6)


def test_a_llama_has_no_features() -> None:
    assert ScoreFeatures.read({}, None) is None
    model = llama()
    with ea.swap(model, "linear"):
        model(make_ids(1, 8))
