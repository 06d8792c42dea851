"""The catalogue of built-in mechanisms, which does not import torch. Each mechanism has a file of its own."""

from typing import NamedTuple


class Entry(NamedTuple):
    """The location and description of a mechanism; its options are those of its constructor's signature."""

    name: str
    target: str  # module:class
    family: str
    sentence: str
    able: frozenset[str] | None = None  # traits shown by `list`; None if not known yet


COMMON_TRAITS = "causal", "decode"
EXACT_TRAITS = *COMMON_TRAITS, "exact"
_ROWS = {  # name, class, sentence and traits shown by `list`, by family; a test verifies the traits
    "full": (
        ("full", "Full", "Exact softmax attention: every query over every key.", EXACT_TRAITS),
        ("dot", "Dot", "Exact softmax of unscaled dot products.", COMMON_TRAITS),
        ("general", "General", "Exact softmax of a learned bilinear form of query and key.", COMMON_TRAITS),
        ("additive", "Additive", "Exact softmax of a small network's score of query and key.", COMMON_TRAITS),
        ("cosine", "Cosine", "Exact softmax of cosines times a learned temperature.", COMMON_TRAITS),
        ("luong_local", "LuongLocal", "A window around a predicted position, fading with distance.", COMMON_TRAITS),
        ("forgetting", "Forgetting", "Exact softmax with keys that fade by forget gates; causal.", COMMON_TRAITS),
        ("differential", "Differential", "The difference of two exact softmaxes, normalised.", COMMON_TRAITS),
        ("sigmoid", "Sigmoid", "sigmoid(q.k - log M) in place of softmax: weights do not compete.", ("causal",)),
    ),
    "sparse": (
        ("sliding_window", "SlidingWindow", "Each query over the keys within a window.", EXACT_TRAITS),
        ("dilated_window", "DilatedWindow", "A window of keys at regular distances.", EXACT_TRAITS),
        ("global_tokens", "GlobalTokens", "First tokens see all and are seen by all.", EXACT_TRAITS),
        ("random_blocks", "RandomBlocks", "A query's own block of keys and a few random ones.", EXACT_TRAITS),
        ("strided", "Strided", "The neighbourhood, and every stride-th position.", EXACT_TRAITS),
        ("fixed", "Fixed", "The query's own block, and the last keys of every block.", EXACT_TRAITS),
        ("longformer", "Longformer", "Sliding window and global tokens.", EXACT_TRAITS),
        ("bigbird", "BigBird", "Sliding window, global tokens and random blocks.", EXACT_TRAITS),
        ("attention_sinks", "AttentionSinks", "The last keys and the very first; causal.", EXACT_TRAITS),
    ),
    "selected": (
        ("topk", "TopK", "The keys with the largest scores: the best selection of so many.", EXACT_TRAITS),
        ("block_topk", "BlockTopK", "The blocks of keys with the largest weights.", EXACT_TRAITS),
        ("quest", "Quest", "Pages of keys with the largest bounds on their scores; causal.", EXACT_TRAITS),
        ("vertical_slash", "VerticalSlash", "Columns and diagonals that the last queries select.", ("causal", "exact")),
        ("moba", "MoBA", "The own block, and earlier ones whose mean key fits the query; causal.", EXACT_TRAITS),
        ("nsa", "NSA", "Means of blocks, selected blocks and a window, each with a gate; causal.", COMMON_TRAITS),
        ("dsa", "DSA", "The keys with the largest scores of a small indexer, for all heads; causal.", EXACT_TRAITS),
        ("knorm", "KNorm", "The last keys, and those of the smallest norm; causal.", EXACT_TRAITS),
    ),
    "linear": (
        ("linear", "Linear", "softmax's exp(q.k) replaced by (elu(q)+1).(elu(k)+1).", COMMON_TRAITS),
        ("performer", "Performer", "Softmax estimated by positive random features (FAVOR+).", COMMON_TRAITS),
        ("random_feature", "RandomFeature", "Softmax of unit vectors by random sines.", COMMON_TRAITS),
        ("cosformer", "CosFormer", "ReLU features, weighted by the cosine of the distance.", COMMON_TRAITS),
        ("relu_linear", "ReluLinear", "softmax's exp(q.k) replaced by relu(q).relu(k).", COMMON_TRAITS),
        ("taylor", "Taylor", "exp(s) replaced by its second-order Taylor series.", COMMON_TRAITS),
        ("retention", "Retention", "q.k decaying with distance, not normalised; causal.", COMMON_TRAITS),
        ("lightning", "Lightning", "q.k with a constant decay of each head, not normalised; causal.", COMMON_TRAITS),
    ),
    "recurrent": (
        ("mamba2", "Mamba2", "A state that decays by a learned rate and steps of the input; causal.", COMMON_TRAITS),
        ("gla", "GLA", "A state with a gate for each channel of the keys; causal.", COMMON_TRAITS),
        ("delta_net", "DeltaNet", "The delta rule: a state is corrected towards values; causal.", COMMON_TRAITS),
        ("gated_delta_net", "GatedDeltaNet", "The delta rule with a gate of each head; causal.", COMMON_TRAITS),
        ("kda", "KDA", "The delta rule with a gate for each channel of the keys; causal.", COMMON_TRAITS),
        ("delta_product", "DeltaProduct", "Several steps of the delta rule at each position; causal.", COMMON_TRAITS),
    ),
    "low_rank": (
        ("linformer", "Linformer", "Keys and values projected along the length, learned.", ()),
        ("nystromformer", "Nystromformer", "Softmax through segment means (landmarks).", ()),
    ),
    "hashed": (
        ("reformer", "Reformer", "Softmax over keys with the same hash; queries are the keys.", ("causal", "exact")),
    ),
    "shared_kv": (
        ("mqa", "MultiQuery", "Exact attention with one key-value head for all heads.", EXACT_TRAITS),
        ("mla", "MultiHeadLatent", "Exact attention; heads make k and v from one cached latent.", EXACT_TRAITS),
        ("gqa", "GroupedQuery", "Exact attention with key-value heads shared by groups of heads.", EXACT_TRAITS),
    ),
}
FAMILIES = tuple(_ROWS)
CATALOGUE = tuple(
    Entry(name, f"efficient_attn.variants.{family}.{name}:{cls}", family, sentence, frozenset(able))
    for family, rows in _ROWS.items()
    for name, cls, sentence, able in rows
)
# of backends that do not take all dtypes, by mechanism and option; a test compares them with the classes
BACKEND_DTYPES = {
    (x.name, "backend=flex"): ("float32", "bfloat16", "float16") for x in CATALOGUE if x.family == "sparse"
}
_FLA_DTYPES = {
    **dict.fromkeys(("linear", "relu_linear"), ("float32", "bfloat16")),
    **dict.fromkeys(("delta_net", "delta_product"), ("bfloat16", "float16")),
    **dict.fromkeys(
        ("retention", "lightning", "mamba2", "gla", "gated_delta_net", "kda", "forgetting"),
        ("float32", "bfloat16", "float16"),
    ),
}
BACKEND_DTYPES |= {(name, "backend=fla"): dtypes for name, dtypes in _FLA_DTYPES.items()}
