"""Sentences about speedups, and descriptions of configurations."""

from __future__ import annotations

from typing import Any

import pytest

from efficient_attn.report import formatting
from efficient_attn.units import INTERVAL_DASH


def plain(text: str) -> str:
    return text.replace(INTERVAL_DASH, "-")


def row(label: str, value: float, low: float | None, high: float | None) -> dict[str, Any]:
    return {"label": label, "speedup": value, "speedup_low": low, "speedup_high": high}


def test_differences_are_claimed_only_if_the_interval_excludes_1() -> None:
    rows = [row("a", 24.1, 23, 25.3), row("b", 0.5, 0.4, 0.625), row("c", 1.1, 0.9, 1.3), row("d", 3.0, None, None)]
    text = plain(formatting.describe_speedups(rows, "full"))
    assert "a is 24.1x (23.0-25.3) faster than full" in text
    assert "b is 2.00x (1.60-2.50) slower than full" in text
    assert "no difference is shown for c" in text
    assert "measured without an interval, so no difference is claimed for d" in text


def test_errors_follow_speedups() -> None:
    rows = [
        row("a", 24.1, 23, 25.3) | {"error_text": "error 0.3"},
        row("b", 3, 2.9, 3.1) | {"error_text": "error not measured"},
    ]
    assert plain(formatting.describe_speedups(rows, "full")) == (
        "a is 24.1x (23.0-25.3) faster than full, error 0.3; b is 3.00x (2.90-3.10), error not measured"
    )
    slower = row("c", 0.5, 0.4, 0.625) | {"error_text": "exact"}
    assert plain(formatting.describe_speedups([*rows, slower], "full")).endswith(
        "; c is 2.00x (1.60-2.50) slower than full, exact"
    )


def test_an_error_shared_by_all_variants_is_stated_once() -> None:
    rows = [row(name, 3, 2.9, 3.1) | {"error_text": "error not measured"} for name in "ab"]
    rows += [row("c", 0.5, 0.4, 0.625) | {"error_text": "error not measured"}]
    text = plain(formatting.describe_speedups(rows, "full"))
    assert text.endswith("; c is 2.00x (1.60-2.50) slower than full; all: error not measured")
    assert text.count("error not measured") == 1
    single = plain(formatting.describe_speedups(rows[:1], "full"))
    assert single == "a is 3.00x (2.90-3.10) faster than full; error not measured"
    assert formatting.describe_speedups(rows, "full", most=1).count("error not measured") == 1


def test_config_names_device_dtype_batch_and_heads() -> None:
    setting = {
        "suite": "s",
        "machine": "M-x2",
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "batch": 2,
        "heads": 4,
    }
    setting |= {"head_dim": 64, "baseline": "full"}
    assert formatting.format_config(setting, {"M-x2": "Zen 5"}) == (
        "cpu, float32, 1 thread, batch 2, 4 heads of size 64, machine M-x2 (Zen 5)"
    )
    assert formatting.format_config({"heads": None, "head_dim": 32}, {}) == "head size 32"
    assert formatting.format_setting(setting, {}).split(" \u00b7 ")[-2:] == ["suite s", "machine M-x2"]


def test_long_sentences_count_omitted_variants() -> None:
    rows = [row(f"v{i}", 2.0 + i, 1.9 + i, 2.1 + i) for i in range(5)]
    assert plain(formatting.describe_speedups(rows, "full", most=2)).startswith(
        "v4 is 6.00x (5.90-6.10) faster than full, v3 is 5.00x"
    )
    assert formatting.describe_speedups(rows, "full", most=2).endswith("3 more differ")


@pytest.mark.parametrize(
    ("fill", "suffix"), [("packed", " \u00b7 rows of drawn lengths, packed"), ("full", ""), (None, "")]
)
def test_a_setting_describes_rows_that_are_not_full(fill: str | None, suffix: str) -> None:
    assert formatting.format_setting({"device": "cpu", "fill": fill}, {}) == f"cpu{suffix}"


@pytest.mark.parametrize(
    ("machine", "short"),
    [
        ("AMD-Zen4-2c-24GiB#5d0574", "AMD Zen 4 (2 cores)"),
        ("Intel-EmeraldRapids-1c-24GiB#1bcbb1", "Intel Emerald Rapids (1 core)"),
        ("AMD-family-25-model-1-2c-unknown#abcdef", "AMD family 25 model 1 (2 cores)"),
        ("AMD-Zen3-8c-8GiB-+NVIDIA_H100-+NVIDIA_A100#aaaaaa", "AMD Zen 3 (8 cores, NVIDIA H100, NVIDIA A100)"),
        ("AMD-EPYC-x2-24GiB", "AMD EPYC (2 cores)"),
        ("M2-x8", "M2-x8"),
        ("my_machine&co", "my_machine&co"),
    ],
)
def test_machines_have_short_names(machine: str, short: str) -> None:
    assert formatting.shorten_machine(machine) == short
