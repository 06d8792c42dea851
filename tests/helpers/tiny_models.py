"""Transformers models: tiny ones with random weights (Llama with grouped heads, Mistral with a window, and others), and
the trained ones of packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor

from efficient_attn.errors import NotInstalled
from efficient_attn.integrations.bundled import LoadedModel, load

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


def llama(**more: Any) -> Any:
    sizes: dict[str, Any] = SIZES | {"num_key_value_heads": 2} | more
    return tf.LlamaForCausalLM(tf.LlamaConfig(**sizes))


def mistral(**more: Any) -> Any:
    sizes: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "sliding_window": 8} | more
    return tf.MistralForCausalLM(tf.MistralConfig(**sizes))


def gpt2() -> Any:
    sizes: dict[str, Any] = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
    return tf.GPT2LMHeadModel(tf.GPT2Config(**sizes, bos_token_id=1, eos_token_id=None))


def deepseek() -> Any:
    """DeepSeek V3, which makes its keys from what its cache returns."""
    sizes: dict[str, Any] = SIZES | {"num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4}
    sizes |= {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    sizes |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
    return tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**sizes))


def gemma3n() -> Any:
    """Gemma 3n, whose last layers attend to the keys of earlier ones."""
    sizes: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4}
    sizes |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
    sizes |= {"num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 4, "vocab_size_per_layer_input": 97}
    sizes |= {"hidden_size_per_layer_input": 8, "laurel_rank": 4, "altup_num_inputs": 2}
    return tf.Gemma3nForCausalLM(tf.Gemma3nTextConfig(**sizes))


def qwen2_moe() -> Any:
    """Qwen2-MoE, which without windows makes a mask of windows of no keys, which no layer uses."""
    sizes: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "num_experts": 4, "moe_intermediate_size": 16}
    return tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(**sizes, shared_expert_intermediate_size=16))


def gptj() -> Any:
    """GPT-J, which computes attention itself."""
    sizes: dict[str, Any] = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
    return tf.GPTJForCausalLM(tf.GPTJConfig(**sizes, rotary_dim=8, bos_token_id=1, eos_token_id=1))


def bert() -> Any:
    return tf.BertModel(tf.BertConfig(**SIZES))


def make_ids(rows: int = 3, length: int = 24) -> Tensor:
    return torch.randint(2, 97, (rows, length), generator=torch.Generator().manual_seed(1))


def save_tiny(folder: Path, make: Callable[..., Any] = llama, **more: Any) -> Path:
    """Save a tiny model with a tokenizer of letters to a folder that transformers can load."""
    torch.manual_seed(0)
    make(**more).save_pretrained(folder)
    words = {"<pad>": 0, "<s>": 1, **{chr(c): c - 30 for c in range(32, 127)}}
    letters = Tokenizer(WordLevel(words, unk_token="<pad>"))
    letters.pre_tokenizer = Split(Regex("."), "isolated")
    tf.PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>").save_pretrained(folder)
    return folder


def load_or_skip(name: str) -> LoadedModel:
    """The trained model of a package; the test is skipped where that is not installed."""
    try:
        return load(name)
    except NotInstalled as error:
        pytest.skip(str(error))
