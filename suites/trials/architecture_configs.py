"""Tiny configurations of transformers' architectures, for `architectures.py`."""

from typing import Any

VOCABULARY = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
EXPERTS: dict[str, Any] = GROUPED | {"num_experts_per_tok": 2, "num_local_experts": 4}
LATENT: dict[str, Any] = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
LATENT |= {"v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}
MIXED: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
GPT: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
IMAGE: dict[str, Any] = SIZES | {"image_size": 32, "patch_size": 8}
SEQ2SEQ: dict[str, Any] = {"vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2}
SEQ2SEQ |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
SEQ2SEQ |= {"max_position_embeddings": 256, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": None}
SEQ2SEQ |= {"forced_eos_token_id": None, "dropout": 0.0}

DECODERS: dict[str, dict[str, Any]] = {
    "llama": GROUPED,
    "mistral": GROUPED | {"sliding_window": 8},
    "mixtral": EXPERTS | {"sliding_window": 8},
    "qwen2": GROUPED,
    "qwen2_moe": GROUPED | {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "qwen3": GROUPED,
    "gemma": GROUPED,
    "gemma2": GROUPED | MIXED | {"attn_logit_softcapping": 0.5},
    "gemma3_text": GROUPED | MIXED,
    "gpt_oss": EXPERTS | MIXED,
    "deepseek_v3": SIZES | LATENT | {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "phi": SIZES,
    "phi3": GROUPED | {"sliding_window": 8},
    "cohere": GROUPED,
    "cohere2": GROUPED | MIXED,
    "olmo2": GROUPED,
    "granite": GROUPED,
    "smollm3": GROUPED,
    "starcoder2": GROUPED | {"sliding_window": 8},
    "stablelm": GROUPED,
    "glm": GROUPED,
    "helium": GROUPED,
    "nemotron": GROUPED,
    "gpt2": GPT,
    "gpt_neox": SIZES,
    "gpt_bigcode": GPT,
    "opt": SIZES | {"ffn_dim": 64, "word_embed_proj_dim": 64},
    "gptj": GPT | {"rotary_dim": 8},
    "gpt_neo": SIZES | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "falcon": SIZES,
    "mpt": {"vocab_size": VOCABULARY, "d_model": 64, "n_layers": 2, "n_heads": 4},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "roberta": SIZES,
    "electra": SIZES | {"embedding_size": 64},
    "distilbert": {"vocab_size": VOCABULARY, "dim": 64, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    "modernbert": SIZES | {"local_attention": 8, "global_attn_every_n_layers": 2},
    "deberta-v2": SIZES,
    "mpnet": SIZES,
    "vit": IMAGE,
    "deit": IMAGE,
    "dinov2": IMAGE,
    "beit": IMAGE | {"use_relative_position_bias": True},
    "swin": {
        "image_size": 32,
        "patch_size": 2,
        "window_size": 4,
        "depths": [2, 2],
        "num_heads": [2, 4],
        "embed_dim": 32,
    },
    "siglip_vision_model": IMAGE,
}
TRANSLATORS: dict[str, dict[str, Any]] = {
    "bart": SEQ2SEQ,
    "marian": SEQ2SEQ,
    "pegasus": SEQ2SEQ,
    "t5": {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    | {"decoder_start_token_id": 0, "dropout_rate": 0.0, "eos_token_id": None},
}
ARCHITECTURES = {**DECODERS, **ENCODERS, **TRANSLATORS}
