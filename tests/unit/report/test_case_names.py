"""Short names of cases: what all share is told once, and no two become alike."""

from __future__ import annotations

from efficient_attn.report.case_names import shorten_names

FULL = "decode/contexts/decode/full/n1024-b1-h8-kv8-d64/float32-cpu-t1-causal"
MQA = "decode/contexts/decode/mqa/n1024-b1-h8-kv1-d64/float32-cpu-t1-causal"
LATER = "decode/prompts/prefill/mqa/n4096-b1-h8-kv1-d64/float32-cpu-t1-causal-compiled"


def test_what_all_share_is_left_out_and_reported() -> None:
    short, shared = shorten_names([FULL, MQA, LATER])
    assert short == {
        FULL: "contexts/decode/full/n1024-kv8",
        MQA: "contexts/decode/mqa/n1024-kv1",
        LATER: "prompts/prefill/mqa/n4096-kv1/compiled",
    }
    assert shared == "decode, b1, h8, d64, float32, cpu, t1, causal"


def test_variant_and_length_stay_where_all_share_them() -> None:
    assert shorten_names([FULL]) == (
        {FULL: "full/n1024"},
        "decode, contexts, b1, h8, kv8, d64, float32, cpu, t1, causal",
    )


def test_options_with_a_dash_are_no_fields() -> None:
    names = [FULL.replace("full", f"mine:x={x}-b1") for x in "12"]
    assert [*shorten_names(names)[0].values()] == ["mine:x=1-b1/n1024", "mine:x=2-b1/n1024"]


def test_names_of_another_form_stay_whole() -> None:
    for names in (["tests/test_sum.py::test_sum[1000]"], [FULL, "test_sum"], []):
        assert shorten_names(names) == ({name: name for name in names}, "")


def test_two_names_never_become_one() -> None:
    names = [FULL, FULL.replace("cpu-t1", "t1-cpu")]
    assert shorten_names(names) == ({name: name for name in names}, "")
