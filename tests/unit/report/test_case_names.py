"""Short names of cases: shared fields are listed once, and names stay unique."""

from __future__ import annotations

from efficient_attn.report.case_names import shorten_names

FULL = "decode/contexts/decode/full/n1024-b1-h8-kv8-d64/float32-cpu-t1-causal"
MQA = "decode/contexts/decode/mqa/n1024-b1-h8-kv1-d64/float32-cpu-t1-causal"
LATER = "decode/prompts/prefill/mqa/n4096-b1-h8-kv1-d64/float32-cpu-t1-causal-compiled"


def test_shared_fields_are_removed_and_returned() -> None:
    short, shared = shorten_names([FULL, MQA, LATER])
    assert short == {
        FULL: "contexts/decode/full/n1024-kv8",
        MQA: "contexts/decode/mqa/n1024-kv1",
        LATER: "prompts/prefill/mqa/n4096-kv1/compiled",
    }
    assert shared == "decode, b1, h8, d64, float32, cpu, t1, causal"


def test_variant_and_length_are_kept_even_if_shared() -> None:
    assert shorten_names([FULL]) == (
        {FULL: "full/n1024"},
        "decode, contexts, b1, h8, kv8, d64, float32, cpu, t1, causal",
    )


def test_options_with_a_dash_are_not_split_into_fields() -> None:
    names = [FULL.replace("full", f"mine:x={x}-b1") for x in "12"]
    assert [*shorten_names(names)[0].values()] == ["mine:x=1-b1/n1024", "mine:x=2-b1/n1024"]


def test_names_of_another_format_are_unchanged() -> None:
    for names in (["tests/test_sum.py::test_sum[1000]"], [FULL, "test_sum"], []):
        assert shorten_names(names) == ({name: name for name in names}, "")


def test_names_are_unchanged_if_shortening_would_merge_them() -> None:
    names = [FULL, FULL.replace("cpu-t1", "t1-cpu")]
    assert shorten_names(names) == ({name: name for name in names}, "")
