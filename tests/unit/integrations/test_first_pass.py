"""Models that are given a mechanism by its name, and do not call it."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers as tf
from tiny_models import SIZES, bert, llama, make_ids

import efficient_attn as ea
from efficient_attn.integrations.transformers import register

FULL = register("full")
XLM_SIZES: dict[str, Any] = {"n_words": 97, "emb_dim": 64, "n_layers": 2, "n_heads": 4}
OTHERS: dict[str, Any] = {
    "GPTJModel": tf.GPTJConfig(vocab_size=97, n_embd=64, n_layer=2, n_head=4, rotary_dim=8),
    "BloomModel": tf.BloomConfig(vocab_size=97, hidden_size=64, n_layer=2, n_head=4),
    "DebertaV2Model": tf.DebertaV2Config(**SIZES),
    "XLMModel": tf.XLMConfig(**XLM_SIZES),
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_with_their_own_attention_are_refused(name: str) -> None:
    with pytest.raises(ea.UnsupportedError, match=f"{name} computes attention itself"):
        tf.AutoModel.from_config(OTHERS[name], attn_implementation=FULL)
    model = tf.AutoModel.from_config(OTHERS[name], attn_implementation="eager")
    with pytest.raises(ea.UnsupportedError, match=f"{name} computes attention itself"):
        model.set_attn_implementation(FULL)
    assert model(make_ids())[0].isfinite().all(), "it remains usable"


@pytest.mark.parametrize("build", [llama, bert])
def test_a_model_whose_attention_calls_nothing_is_refused_in_its_first_pass(build: Any) -> None:
    model: Any = build()
    model.set_attn_implementation(FULL)
    attentions = [m for m in model.modules() if type(m).__name__ in ("LlamaAttention", "BertSelfAttention")]
    for attention in attentions:
        attention.forward = lambda hidden_states, *_, **__: (torch.zeros_like(hidden_states), None)
    assert attentions
    with pytest.raises(ea.UnsupportedError, match="computes attention itself"):
        model(make_ids())


def test_the_first_pass_is_checked_once_and_models_can_be_copied_before() -> None:
    model: Any = llama().eval()
    model.set_attn_implementation(FULL)
    for duplicate in (model, deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert len(duplicate._forward_hooks) == len(duplicate._forward_pre_hooks) == 1
        with pytest.raises(IndexError):
            duplicate(torch.tensor([[10**6]]))  # a pass that ends with an error checks nothing
        assert duplicate(make_ids())[0].isfinite().all()
        assert not duplicate._forward_hooks
        assert not duplicate._forward_pre_hooks
