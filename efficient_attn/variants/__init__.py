"""The catalogue: every built-in mechanism on one screen, readable without torch. One mechanism a file."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where a mechanism is and what it is, in one sentence; its options live in its constructor's signature."""

    name: str
    target: str  # module:class
    family: str
    sentence: str
    able: frozenset[str] | None = None  # traits by which people choose, as `list` shows them; None where not known yet


FAMILIES = ("full", "sparse", "linear", "low_rank", "hashed", "shared_kv")


STEPS = "causal", "decode"  # what most can
EXACT = *STEPS, "exact"  # a softmax over the keys that are seen, besides


def _entry(name: str, cls: str, family: str, sentence: str, able: tuple[str, ...] = STEPS) -> Entry:
    """A file of the family's folder, called as the mechanism is. able: held to its traits by a test."""
    return Entry(name, f"efficient_attn.variants.{family}.{name}:{cls}", family, sentence, frozenset(able))


CATALOGUE = (
    _entry("full", "Full", "full", "Exact softmax attention: every query over every key.", EXACT),
    _entry("dot", "Dot", "full", "Exact softmax of dot products as they are, not scaled."),
    _entry("general", "General", "full", "Exact softmax of a learned bilinear form of query and key."),
    _entry("additive", "Additive", "full", "Exact softmax of a small network's score of query and key."),
    _entry("cosine", "Cosine", "full", "Exact softmax of cosines times a learned temperature."),
    _entry("luong_local", "LuongLocal", "full", "A window around a predicted position, fading with distance."),
    _entry("sliding_window", "SlidingWindow", "sparse", "Each query over the keys within a window.", EXACT),
    _entry("dilated_window", "DilatedWindow", "sparse", "A window of keys some positions apart.", EXACT),
    _entry("global_tokens", "GlobalTokens", "sparse", "First tokens see all and are seen by all.", EXACT),
    _entry("random_blocks", "RandomBlocks", "sparse", "A query's own block of keys and a few drawn ones.", EXACT),
    _entry("strided", "Strided", "sparse", "The neighbourhood, and every stride-th position.", EXACT),
    _entry("fixed", "Fixed", "sparse", "The query's own block, and the last keys of every block.", EXACT),
    _entry("longformer", "Longformer", "sparse", "Sliding window and global tokens.", EXACT),
    _entry("bigbird", "BigBird", "sparse", "Sliding window, global tokens and random blocks.", EXACT),
    _entry("attention_sinks", "AttentionSinks", "sparse", "The last keys and the very first; causal.", EXACT),
    _entry("linear", "Linear", "linear", "softmax's exp(q.k) replaced by (elu(q)+1).(elu(k)+1)."),
    _entry("performer", "Performer", "linear", "Softmax estimated by positive random features (FAVOR+)."),
    _entry("random_feature", "RandomFeature", "linear", "Softmax of unit vectors by random sines."),
    _entry("cosformer", "CosFormer", "linear", "ReLU features, weighted by the cosine of the distance."),
    _entry("relu_linear", "ReluLinear", "linear", "softmax's exp(q.k) replaced by relu(q).relu(k)."),
    _entry("taylor", "Taylor", "linear", "exp(s) replaced by its second-order Taylor series."),
    _entry("retention", "Retention", "linear", "q.k decaying with distance, not normalised; causal."),
    _entry("linformer", "Linformer", "low_rank", "Keys and values projected along the length, learned.", ()),
    _entry("nystromformer", "Nystromformer", "low_rank", "Softmax by way of segment means (landmarks).", ()),
    _entry(
        "reformer",
        "Reformer",
        "hashed",
        "Softmax over keys that hash alike; queries are the keys.",
        ("causal", "exact"),
    ),
    _entry("mqa", "MultiQuery", "shared_kv", "Exact attention whose heads all share one key-value head.", EXACT),
    _entry("mla", "MultiHeadLatent", "shared_kv", "Exact attention; heads make k and v from one cached latent.", EXACT),
    _entry("gqa", "GroupedQuery", "shared_kv", "Exact attention whose heads share key-value heads in groups.", EXACT),
)
