"""The catalogue: every built-in mechanism on one screen, readable without torch. One mechanism a file."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """The location and description of a mechanism; its options are those of its constructor's signature."""

    name: str
    target: str  # module:class
    family: str
    sentence: str
    able: frozenset[str] | None = None  # traits shown by `list`; None if not known yet


FAMILIES = ("full", "sparse", "linear", "low_rank", "hashed", "shared_kv")


COMMON_TRAITS = "causal", "decode"  # the traits that most have
EXACT_TRAITS = *COMMON_TRAITS, "exact"  # a softmax over the keys that are seen, besides


def _make_entry(name: str, cls: str, family: str, sentence: str, able: tuple[str, ...] = COMMON_TRAITS) -> Entry:
    """An entry for a file of the family's folder with the mechanism's name. able: verified against its traits by a
    test."""
    return Entry(name, f"efficient_attn.variants.{family}.{name}:{cls}", family, sentence, frozenset(able))


CATALOGUE = (
    _make_entry("full", "Full", "full", "Exact softmax attention: every query over every key.", EXACT_TRAITS),
    _make_entry("dot", "Dot", "full", "Exact softmax of unscaled dot products."),
    _make_entry("general", "General", "full", "Exact softmax of a learned bilinear form of query and key."),
    _make_entry("additive", "Additive", "full", "Exact softmax of a small network's score of query and key."),
    _make_entry("cosine", "Cosine", "full", "Exact softmax of cosines times a learned temperature."),
    _make_entry("luong_local", "LuongLocal", "full", "A window around a predicted position, fading with distance."),
    _make_entry("sliding_window", "SlidingWindow", "sparse", "Each query over the keys within a window.", EXACT_TRAITS),
    _make_entry("dilated_window", "DilatedWindow", "sparse", "A window of keys at regular distances.", EXACT_TRAITS),
    _make_entry("global_tokens", "GlobalTokens", "sparse", "First tokens see all and are seen by all.", EXACT_TRAITS),
    _make_entry(
        "random_blocks", "RandomBlocks", "sparse", "A query's own block of keys and a few random ones.", EXACT_TRAITS
    ),
    _make_entry("strided", "Strided", "sparse", "The neighbourhood, and every stride-th position.", EXACT_TRAITS),
    _make_entry("fixed", "Fixed", "sparse", "The query's own block, and the last keys of every block.", EXACT_TRAITS),
    _make_entry("longformer", "Longformer", "sparse", "Sliding window and global tokens.", EXACT_TRAITS),
    _make_entry("bigbird", "BigBird", "sparse", "Sliding window, global tokens and random blocks.", EXACT_TRAITS),
    _make_entry(
        "attention_sinks", "AttentionSinks", "sparse", "The last keys and the very first; causal.", EXACT_TRAITS
    ),
    _make_entry("linear", "Linear", "linear", "softmax's exp(q.k) replaced by (elu(q)+1).(elu(k)+1)."),
    _make_entry("performer", "Performer", "linear", "Softmax estimated by positive random features (FAVOR+)."),
    _make_entry("random_feature", "RandomFeature", "linear", "Softmax of unit vectors by random sines."),
    _make_entry("cosformer", "CosFormer", "linear", "ReLU features, weighted by the cosine of the distance."),
    _make_entry("relu_linear", "ReluLinear", "linear", "softmax's exp(q.k) replaced by relu(q).relu(k)."),
    _make_entry("taylor", "Taylor", "linear", "exp(s) replaced by its second-order Taylor series."),
    _make_entry("retention", "Retention", "linear", "q.k decaying with distance, not normalised; causal."),
    _make_entry("linformer", "Linformer", "low_rank", "Keys and values projected along the length, learned.", ()),
    _make_entry("nystromformer", "Nystromformer", "low_rank", "Softmax through segment means (landmarks).", ()),
    _make_entry(
        "reformer",
        "Reformer",
        "hashed",
        "Softmax over keys with the same hash; queries are the keys.",
        ("causal", "exact"),
    ),
    _make_entry(
        "mqa", "MultiQuery", "shared_kv", "Exact attention with one key-value head for all heads.", EXACT_TRAITS
    ),
    _make_entry(
        "mla",
        "MultiHeadLatent",
        "shared_kv",
        "Exact attention; heads make k and v from one cached latent.",
        EXACT_TRAITS,
    ),
    _make_entry(
        "gqa",
        "GroupedQuery",
        "shared_kv",
        "Exact attention with key-value heads shared by groups of heads.",
        EXACT_TRAITS,
    ),
)
