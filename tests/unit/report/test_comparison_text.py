"""Comparisons as text, Markdown and JSON: order, intervals, counts and a stable schema."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from comparisons import ALL, BROKEN, FASTER, FIXED, SAME, SINGLE, SLOWER, UNCLEAR, make_comparison

from efficient_attn.report import comparison_text
from efficient_attn.results.compare import CHANGE_KINDS, Change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (FASTER, "1.20x faster (1.15-1.26)"),
        (SLOWER, "1.25x slower (1.18-1.33)"),
        (SAME, "same (0.990-1.01)"),
        (UNCLEAR, "inconclusive (0.908-1.10)"),
        (SINGLE, "inconclusive"),
        (replace(UNCLEAR, blind=True, least=0.2), "blind below 20% (0.908-1.10)"),
        (replace(UNCLEAR, blind=True, least=1.5), "blind below 2.50x (0.908-1.10)"),
        (replace(UNCLEAR, blind=True, reason="noise"), "inconclusive (0.908-1.10)"),
        (BROKEN, "broken"),
        (FIXED, "fixed"),
        (replace(FASTER, ratio=123.4, low=100.0, high=1500.0), "123x faster (100-1500)"),
    ],
)
def test_changes_are_described(change: Change, text: str) -> None:
    assert comparison_text.describe_change(change) == text


def test_text_lists_the_worst_first_and_counts_the_same() -> None:
    text = comparison_text.as_text(
        make_comparison(*ALL, only_in_base=("s/gone",), only_in_new=("s/n",), failing=("s/bad",))
    )
    names = [line.split()[0] for line in text.splitlines() if line.startswith(("s/", "a|b"))]
    assert names == ["a|b", "s/worst", "s/slower", "s/fast", "s/fixed", "s/unclear", "s/single"]
    assert "10.0 -> 12.5 ms" in text
    assert "0.120 -> 0.100 ms" in text
    assert "only in base:\n  s/gone\n" in text
    verdicts = "1 broken, 2 slower, 1 faster, 1 fixed, 2 inconclusive, 1 same"
    assert f"{verdicts}; 1 only in base, 1 only in new, 1 failing in both" in " ".join(text.split())
    assert "95% for all verdicts together; same: within 10%" in " ".join(text.split())
    for reason in ("oom: no memory", "a single round"):
        assert f"\n    {reason}\n" in text


def test_include_all_lists_unchanged_cases() -> None:
    assert "s/same" not in comparison_text.as_text(make_comparison(*ALL))
    assert "s/same" in comparison_text.as_text(make_comparison(*ALL), include_all=True)
    assert "s/same" in comparison_text.as_markdown(make_comparison(*ALL), include_all=True)


def test_changed_memory_is_reported() -> None:
    changed = replace(SAME, base_bytes=2**20, new_bytes=3 * 2**20, reason="so it is")
    assert "    so it is; memory 1.00 -> 3.00 MiB" in comparison_text.as_text(make_comparison(changed))
    assert "| so it is; memory 1.00 -> 3.00 MiB |" in comparison_text.as_markdown(make_comparison(changed))


def test_the_deciding_column_of_time_and_speedup_is_marked() -> None:
    """Otherwise "3.35x faster" would be printed next to "94.1 -> 96.4 ms" without an explanation."""
    times = {"base_ms": 94.1, "new_ms": 96.4, "base_speedup": 0.9, "new_speedup": 3.0}
    by_speedup, by_time = replace(FASTER, **times), replace(FASTER, name="s/t", by="latency", **times)
    head, *lines = [x for x in comparison_text.as_text(make_comparison(by_speedup, by_time)).splitlines() if "  " in x][
        :3
    ]
    assert re.split("  +", head) == ["case", "new against base", "own time", "speedup"]
    assert re.split("  +", lines[0])[2:] == ["94.1 -> 96.4 ms", "0.900 -> 3.00 *"]
    assert re.split("  +", lines[1])[2:] == ["94.1 -> 96.4 ms *", "0.900 -> 3.00"]
    table = comparison_text.as_markdown(make_comparison(by_speedup, by_time))
    assert "| 94.1 -> 96.4 ms | **0.900 -> 3.00** |" in table
    assert "| **94.1 -> 96.4 ms** | 0.900 -> 3.00 |" in table


LONG = (
    "decode/torch's own groups/decode/random_feature:gated=true:n_features={}/n{}-b1-h8-kv8-d64/float32-cpu-t1-causal"
)


@pytest.mark.parametrize("change", [SLOWER, UNCLEAR, replace(UNCLEAR, blind=True, least=12.0, reason="so " * 60)])
def test_text_fits_the_terminal_width(change: Change) -> None:
    times = {"base_ms": 0.0468, "new_ms": 0.0471, "base_speedup": 0.532, "new_speedup": 0.535}
    changes = [replace(change, name=LONG.format(n, 1024 * n), **times) for n in (16, 64)]
    comparison = make_comparison(
        *changes, unlike=("machine " + "x " * 80,), itself=True, only_in_new=(LONG.format(2, 4),)
    )
    text = comparison_text.as_text(comparison)
    assert max(map(len, text.splitlines())) <= comparison_text.TERMINAL_WIDTH
    assert "random_feature:gated=true:n_features=16/n16384" in text
    shared = "decode, torch's own groups, b1, h8, kv8, d64, float32, cpu, t1, causal"
    assert f"All cases: {shared}" in " ".join(text.split())
    assert f"All cases: {shared}" in comparison_text.as_markdown(comparison)


def test_summary_bounds_undetected_slowdowns() -> None:
    conclusive = [replace(SAME, slower_by_at_most=0.01), replace(SLOWER, slower_by_at_most=0.0712)]
    assert comparison_text.summarise_comparison(make_comparison(*conclusive))[1:] == [
        "No other case became slower by more than 1% (at 95%)."
    ]
    blind = [replace(UNCLEAR, name=f"s/{x}", blind=True, least=x) for x in (0.3, 0.456)]
    assert comparison_text.summarise_comparison(make_comparison(*conclusive, *blind))[1:] == [
        "No other case became slower by more than 1% (at 95%).",
        "2 cases could not have shown a difference of 10%: 2 at best one of 30% to 46%.",
    ]
    assert comparison_text.summarise_comparison(make_comparison(*blind[:1], SINGLE))[1:] == [
        "2 cases could not have shown a difference of 10%: 1 at best one of 30%, 1 none at all."
    ]
    text = comparison_text.as_text(make_comparison(*conclusive, *blind))
    assert text.splitlines()[-3] == "1 slower, 2 inconclusive, 1 same"
    assert "No other case became slower" in comparison_text.as_markdown(make_comparison(*conclusive, *blind))


def test_blind_cases_come_after_other_inconclusive_ones() -> None:
    sensitive = replace(UNCLEAR, name="s/seeing")
    text = comparison_text.as_text(make_comparison(replace(UNCLEAR, blind=True, least=0.3), sensitive))
    assert text.index("s/seeing") < text.index("s/unclear")


def test_self_comparison_is_noted() -> None:
    assert comparison_text.SELF_COMPARISON_NOTE in " ".join(
        comparison_text.as_text(make_comparison(SAME, itself=True)).split()
    )
    assert f"> {comparison_text.SELF_COMPARISON_NOTE}" in comparison_text.as_markdown(
        make_comparison(SAME, itself=True)
    )
    assert comparison_text.SELF_COMPARISON_NOTE not in comparison_text.as_text(make_comparison(SAME))


def test_differing_machines_are_reported_at_the_top() -> None:
    comparison = make_comparison(SAME, unlike=("torch 2.12 in old, 2.13 in new",))
    assert "\nUnlike machines: torch 2.12 in old, 2.13 in new." in comparison_text.as_text(comparison)
    assert "\n> Unlike machines: torch" in comparison_text.as_markdown(comparison)
    assert "Unlike" not in comparison_text.as_text(make_comparison(SAME))


def test_an_empty_comparison_is_reported() -> None:
    assert comparison_text.format_counts(make_comparison()) == "nothing to compare"


def test_markdown_folds_inconclusive_cases() -> None:
    text = comparison_text.as_markdown(make_comparison(*ALL, only_in_new=("s/n",)))
    table, _, folded = text.partition("<details>")
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["a\\|b", "s/worst", "s/slower", "s/fast", "s/fixed"]
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)
    assert "s/unclear" in folded
    assert "- `s/n`" in folded
    assert text.startswith("**1 broken, 2 slower")
    assert folded.count("</details>") == text.count("<details>") == 2


def test_markdown_of_a_large_comparison_fits_a_github_comment() -> None:
    changes = [replace(c, name=f"{'x' * 90}/{i}") for i in range(2000) for c in (SLOWER, UNCLEAR)]
    text = comparison_text.as_markdown(
        make_comparison(*changes, only_in_base=tuple(f"{'x' * 90}/{i}" for i in range(2000)))
    )
    assert len(text) < 65536
    assert text.count("\n1900 more") == 3


def test_json_schema_is_stable() -> None:
    document = json.loads(
        json.dumps(comparison_text.as_json(make_comparison(*ALL, only_in_base=("s/gone",))), allow_nan=False)
    )
    assert {name: type(value).__name__ for name, value in document.items()} == {
        "schema": "int", "base": "str", "new": "str", "by": "str", "confidence": "float", "margin": "float",
        "drift": "float", "unlike": "list", "regressed": "bool", "counts": "dict", "cases": "list",
        "only_in_base": "list", "only_in_new": "list", "failing": "list", "tolerance": "float", "itself": "bool",
        "slower_by_at_most": "NoneType", "blind": "list", "shared": "str",
    }  # fmt: skip
    assert document["schema"] == 1
    assert list(document["counts"]) == list(CHANGE_KINDS)
    assert set(document["cases"][0]) == {
        "name", "kind", "reason", "by", "ratio", "low", "high", "base_ms", "new_ms", "base_bytes", "new_bytes",
        "base_speedup", "new_speedup", "least", "slower_by_at_most", "blind", "short", "pairs",
    }  # fmt: skip
    assert [c["kind"] for c in document["cases"]][:3] == ["broken", "slower", "slower"]
    assert document["regressed"] is True
    assert comparison_text.as_json(make_comparison(SAME, FASTER, UNCLEAR, FIXED))["regressed"] is False


def test_times_that_contradict_the_compared_pairs_are_not_shown() -> None:
    change = replace(SLOWER, by="latency", ratio=0.64, low=0.53, high=0.77, base_ms=25.1, new_ms=27.2, pairs=12)
    assert "ms" not in comparison_text.describe_fully(change)
    assert "25.1 -> 39.2 ms" in comparison_text.describe_fully(replace(change, new_ms=39.2))
